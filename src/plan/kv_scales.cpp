#include "plan/kv_scales.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace quantmill {
namespace {

constexpr std::string_view kOutput = ".o_proj";

// "model.layers.0.self_attn" without what the checkpoint writes before the architecture's names.
std::string without_prefix(const std::string& module, const ResolvedArchitecture& architecture) {
  std::size_t longest = 0;
  for (const std::string& prefix : architecture.prefixes) {
    if (module.starts_with(prefix)) {
      longest = std::max(longest, prefix.size());
    }
  }
  return module.substr(longest);
}

// The activation between values and the output projection, whose s divides the values.
std::optional<std::size_t> value_activation(const ResolvedArchitecture& architecture,
                                            std::size_t output) {
  for (std::size_t index = 0; index < architecture.activations.size(); ++index) {
    const Activation& activation = architecture.activations[index];
    if (activation.producer && activation.producer->kind == ProducerKind::kLinearRows &&
        std::ranges::find(activation.readers, output) != activation.readers.end()) {
      return index;
    }
  }
  return std::nullopt;
}

void add_layer(std::size_t output, const std::string& attention, Plan& plan) {
  const bool is_quark = plan.recipe.layout == Layout::kQuark;
  const std::string record = without_prefix(attention, plan.architecture);
  for (const std::string_view kind : {"k", "v"}) {
    TensorWork work;
    work.tensor = output;
    work.name = fmt::format("{}.{}{}", attention, kind, is_quark ? "_proj.output_scale" : "_scale");
    work.action = Action::kKvScale;
    work.cols = 1;
    work.stored = DType::kF32;
    KvScale scale{plan.tensors.size(), fmt::format("{}.{}_cache", record, kind), {}};
    if (kind == "v") {
      scale.activation = value_activation(plan.architecture, output);
    }
    plan.kv_scales.push_back(std::move(scale));
    plan.tensors.push_back(std::move(work));
  }
}

}  // namespace

bool is_cache_record(std::string_view name) {
  return name.ends_with(".k_cache") || name.ends_with(".v_cache");
}

std::optional<std::vector<double>> cache_maxima(const Statistics& statistics,
                                                const ResolvedArchitecture& architecture,
                                                const std::string& maxima) {
  for (const std::string& prefix : architecture.prefixes) {
    const auto found = statistics.find(prefix + maxima);
    if (found != statistics.end() &&
        std::ranges::any_of(found->second.absmax, [](double value) { return value > 0; })) {
      return found->second.absmax;
    }
  }
  return std::nullopt;
}

void add_kv_scales(const Statistics* statistics, Plan& plan) {
  const std::vector<ModelTensor>& tensors = plan.architecture.tensors;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    const std::string module = tensors[index].module();
    // Who records the model does not run its parts; servers take 1 for a cache without scales.
    if (tensors[index].part.empty() && tensors[index].role == TensorRole::kLinear &&
        module.ends_with(kOutput)) {
      add_layer(index, module.substr(0, module.size() - kOutput.size()), plan);
    }
  }
  if (plan.kv_scales.empty()) {
    throw Error(ErrorCode::kUsage,
                "--kv-cache: the model has no attention with an o_proj, whose keys and values "
                "could be scaled; leave the option out");
  }
  for (const KvScale& scale : plan.kv_scales) {
    if (statistics != nullptr && !cache_maxima(*statistics, plan.architecture, scale.maxima)) {
      throw Error(ErrorCode::kInput,
                  fmt::format("the statistics have no maxima (absmax) of '{}', which --kv-cache "
                              "needs; record what goes into the cache (scripts/collect "
                              "--kv-cache), or leave the option out",
                              scale.maxima));
    }
  }
}

StoredPart kv_scale_part(Layout layout, const std::string& name) {
  StoredPart part{name, DType::kF32, {}};
  if (layout == Layout::kCompressedTensors) {
    part.shape.push_back(1);
  }
  return part;
}

}  // namespace quantmill
