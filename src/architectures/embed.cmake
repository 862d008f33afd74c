# Writes a C++ table of the architecture files: cmake -DOUTPUT=table.cpp "-DFILES=a.json;b.json" -P embed.cmake
set(text "#include \"plan/architecture.h\"\n\nnamespace quantmill {\n\nstd::vector<BuiltinArchitecture> builtin_architectures() {\n  return {\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} content)
  string(APPEND text "      {\"${name}\", R\"JSON(${content})JSON\"},\n")
endforeach()
string(APPEND text "  };\n}\n\n}  // namespace quantmill\n")
file(WRITE ${OUTPUT} "${text}")
