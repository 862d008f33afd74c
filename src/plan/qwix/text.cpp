#include "plan/qwix/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace quantmill {

namespace {

std::string sources_of(const QwixParameter& parameter) {
  const std::vector<std::string>& names = parameter.sources;
  if (names.size() < 3) {
    return fmt::format("{}", fmt::join(names, ", "));
  }
  return fmt::format("{}, … {} ({} weights)", names.front(), names.back(), names.size());
}

std::string stored_as(const QwixParameter& parameter) {
  if (!parameter.is_quantized()) {
    return std::string(dtype_name(parameter.values.dtype));
  }
  const std::string inputs = parameter.block_in == 0 ? "all" : std::to_string(parameter.block_in);
  return fmt::format("{} in {}, scales {} [{}] of {} x {}{}{}",
                     parameter.logical_type,
                     dtype_name(parameter.values.dtype),
                     dtype_name(parameter.scales->dtype),
                     fmt::join(parameter.scales->shape, ", "),
                     inputs,
                     parameter.block_out,
                     parameter.zero_points ? ", zero points" : "",
                     parameter.opaque ? ", opaque" : "");
}

}  // namespace

std::string describe_parameters(const Plan& plan) {
  std::string text = plan.parameters.empty() ? "" : "parameters: weights -> name [shape]\n";
  for (const QwixParameter& parameter : plan.parameters) {
    text += fmt::format("  {} -> {} [{}] {}\n",
                        sources_of(parameter),
                        parameter.name,
                        fmt::join(parameter.values.shape, ", "),
                        stored_as(parameter));
  }
  return text;
}

std::string parameters_to_json(const Plan& plan) {
  using Json = nlohmann::ordered_json;
  Json parameters = Json::array();
  for (const QwixParameter& parameter : plan.parameters) {
    Json json = {{"name", parameter.name},
                 {"sources", parameter.sources},
                 {"shape", parameter.values.shape},
                 {"axes", parameter.axes},
                 {"dtype", dtype_name(parameter.values.dtype)}};
    if (parameter.is_quantized()) {
      json["logical_dtype"] = parameter.logical_type;
      json["scale_dtype"] = dtype_name(parameter.scales->dtype);
      json["scale_shape"] = parameter.scales->shape;
      json["zero_points"] = parameter.zero_points.has_value();
      json["opaque"] = parameter.opaque;
    }
    parameters.push_back(std::move(json));
  }
  return parameters.dump();
}

}  // namespace quantmill
