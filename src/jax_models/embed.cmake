# Writes a C++ table of the JAX models and the loader: cmake -DOUTPUT=table.cpp "-DFILES=a.json;b.json"
# -DLOADER=load_qwix.py -P embed.cmake
set(text "#include \"plan/qwix/jax_model.h\"\n\nnamespace quantmill {\n\nstd::vector<BuiltinJaxModel> builtin_jax_models() {\n  return {\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME_WLE)
  file(READ ${file} content)
  string(APPEND text "      {\"${name}\", R\"JSON(${content})JSON\"},\n")
endforeach()
file(READ ${LOADER} loader)
string(APPEND text "  };\n}\n\nstd::string qwix_loader() {\n  return R\"PYTHON(${loader})PYTHON\";\n}\n\n}  // namespace quantmill\n")
file(WRITE ${OUTPUT} "${text}")
