#include "plan/plan_sizes.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/byte_size.h"
#include "plan/kept.h"

namespace quantmill {
namespace {

using Json = nlohmann::ordered_json;

struct RoleSizes {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  std::uint64_t parameters = 0;
};

std::string_view role_of(const ModelTensor& tensor) {
  switch (tensor.role) {
    case TensorRole::kLinear:
      return tensor.quantizable ? "linears" : "other matrices";
    case TensorRole::kNorm:
      return "norms";
    case TensorRole::kOther:
      break;
  }
  return "embeddings and others";
}

std::map<std::string, RoleSizes> sizes_by_role(const Plan& plan, const Checkpoint& checkpoint) {
  std::map<std::string, RoleSizes> roles;
  for (const TensorWork& work : plan.tensors) {
    if (work.action == Action::kKvScale) {
      roles["scales of the key-value cache"].after += work.output_bytes();
      continue;
    }
    RoleSizes& role = roles[std::string(role_of(plan.architecture.tensors[work.tensor]))];
    role.before += source_bytes(checkpoint, plan, work);
    role.after += work.output_bytes();
    role.parameters += work.rows * work.cols;
  }
  return roles;
}

struct KeptSizes {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

std::map<std::string, KeptSizes> kept_by_reason(const Plan& plan) {
  std::map<std::string, KeptSizes> reasons;
  for (const KeptTensor& tensor : kept_tensors(plan)) {
    KeptSizes& kept = reasons[tensor.why];
    ++kept.tensors;
    kept.bytes += tensor.size_bytes;
  }
  return reasons;
}

double bits_per_weight(const Plan& plan) {
  double bytes = 0;
  for (const auto& [type, size] : output_bytes_by_type(plan)) {
    bytes += static_cast<double>(size);
  }
  const std::uint64_t parameters = count_parameters(plan).all;
  return parameters == 0 ? 0 : 8 * bytes / static_cast<double>(parameters);
}

}  // namespace

std::string describe_plan_sizes(const Plan& plan, const Checkpoint& checkpoint) {
  std::string text = fmt::format("bits per weight: {:.3f}\n", bits_per_weight(plan));
  for (const auto& [role, sizes] : sizes_by_role(plan, checkpoint)) {
    text += fmt::format(
        "  {:<30} {:>12} -> {:>12}\n", role, format_size(sizes.before), format_size(sizes.after));
  }
  text += "kept unquantized, and why\n";
  for (const auto& [why, kept] : kept_by_reason(plan)) {
    text +=
        fmt::format("  {:>12}  {:>5} tensors  {}\n", format_size(kept.bytes), kept.tensors, why);
  }
  return text;
}

std::string plan_sizes_to_json(const Plan& plan, const Checkpoint& checkpoint) {
  Json json;
  json["bits_per_weight"] = bits_per_weight(plan);
  json["by_type"] = {{"before", source_bytes_by_type(checkpoint, plan)},
                     {"after", output_bytes_by_type(plan)}};
  json["by_role"] = Json::object();
  for (const auto& [role, sizes] : sizes_by_role(plan, checkpoint)) {
    json["by_role"][role] = {
        {"before", sizes.before}, {"after", sizes.after}, {"parameters", sizes.parameters}};
  }
  json["kept"] = Json::array();
  for (const auto& [why, kept] : kept_by_reason(plan)) {
    json["kept"].push_back({{"why", why}, {"tensors", kept.tensors}, {"bytes", kept.bytes}});
  }
  return json.dump();
}

}  // namespace quantmill
