#include "plan/qwix/layout.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "plan/qwix/codes.h"
#include "plan/qwix/files.h"
#include "plan/qwix/jax_parameters.h"
#include "plan/qwix/targets.h"

namespace quantmill {

namespace {

constexpr std::uint64_t kShardBytes = std::uint64_t{4} << 30;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInput, message);
}

// The works of each weight.
std::vector<std::vector<std::size_t>> works_by_weight(const Plan& plan) {
  std::vector<std::vector<std::size_t>> works(plan.architecture.weights.size());
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    works[plan.architecture.tensors[plan.tensors[index].tensor].stored].push_back(index);
  }
  return works;
}

class QwixPlacer {
 public:
  QwixPlacer(const Checkpoint& checkpoint, const std::string& config_json, Plan& plan)
      : checkpoint_(checkpoint), plan_(plan), works_(works_by_weight(plan)) {
    std::vector<bool> wanted;
    for (const std::vector<std::size_t>& works : works_) {
      wanted.push_back(!works.empty());
    }
    found_ = find_jax_parameters(parse_jax_model(load_jax_model(plan.recipe.jax_model)),
                                 config_json,
                                 plan.architecture.weights,
                                 wanted);
  }

  void place() {
    choose_all_blocks();
    std::vector<TensorToPlace> wanted;
    for (const JaxParameter& parameter : found_.parameters) {
      with_context(fmt::format("parameter {}", parameter.name), [&] {
        check_alike(parameter);
        describe(parameter);
      });
      const QwixParameter& described = plan_.parameters.back();
      wanted.push_back(
          {described.values.name, described.values.dtype, described.values.shape, {}, false});
      for (const auto& part : {described.scales, described.zero_points}) {
        if (part) {
          wanted.push_back({part->name, part->dtype, part->shape, {}, true});
        }
      }
    }
    PlacedTensors placed = place_tensors(
        std::move(wanted),
        plan_.recipe.max_shard_bytes == 0 ? kShardBytes : plan_.recipe.max_shard_bytes);
    plan_.shards = std::move(placed.shards);
    std::unordered_map<std::string, TensorPlace> places;
    for (std::size_t shard = 0; shard < plan_.shards.size(); ++shard) {
      plan_.output_bytes += plan_.shards[shard].size_bytes();
      for (const TensorEntry& entry : plan_.shards[shard].tensors()) {
        places[entry.name] = {shard, plan_.shards[shard].header.size() + entry.begin, entry.dtype};
      }
    }
    for (std::size_t i = 0; i < found_.parameters.size(); ++i) {
      with_context(fmt::format("parameter {}", found_.parameters[i].name),
                   [&] { add_targets(found_.parameters[i], plan_.parameters[i], places); });
    }
    finish();
    for (TextFile& file : qwix_files(plan_)) {
      plan_.beside.push_back(std::move(file));
    }
  }

 private:
  [[nodiscard]] const TensorWork& first_work(const ParameterSource& source) const {
    return plan_.tensors[works_[source.weight].front()];
  }

  // Blocks of every quantized parameter. Qwix has one rule for all that a module owns.
  void choose_all_blocks() {
    blocks_.resize(found_.parameters.size());
    std::unordered_map<std::string, std::vector<std::size_t>> modules;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const JaxParameter& parameter = found_.parameters[i];
      if (!first_work(parameter.sources.front()).is_quantized()) {
        continue;
      }
      with_context(fmt::format("parameter {}", parameter.name), [&] {
        check_alike(parameter);
        blocks_[i] = choose_blocks(checkpoint_, plan_, works_, parameter);
      });
      if (!parameter.opaque) {
        modules[parameter.name.substr(0, parameter.name.rfind('.'))].push_back(i);
      }
    }
    for (const auto& [module, members] : modules) {
      share_blocks(module, members);
    }
  }

  // The largest block that fits all, unless each has one scale for all its inputs.
  void share_blocks(const std::string& module, const std::vector<std::size_t>& members) {
    std::uint64_t block = 0;
    bool is_whole = true;
    for (const std::size_t member : members) {
      block = std::gcd(block, blocks_[member].cols);
      is_whole = is_whole && blocks_[member].is_whole;
    }
    for (const std::size_t member : members) {
      const JaxParameter& parameter = found_.parameters[member];
      if (!is_whole && parameter.block && *parameter.block != block) {
        fail(
            fmt::format("parameter {}: blocks of {} are stated, but module {} needs {} for all of "
                        "its parameters, since Qwix has one rule for a module",
                        parameter.name,
                        *parameter.block,
                        module,
                        block));
      }
      if (!is_whole) {
        blocks_[member] = {1, block, false};
      }
    }
  }

  // Fills plan_.parameters with what will be stored for one.
  void describe(const JaxParameter& parameter) {
    QwixParameter& described = plan_.parameters.emplace_back();
    described.name = parameter.name;
    described.opaque = parameter.opaque;
    for (const ParameterSource& source : parameter.sources) {
      const std::string& name = plan_.architecture.weights[source.weight].entry.name;
      if (std::ranges::find(described.sources, name) == described.sources.end()) {
        described.sources.push_back(name);
      }
    }
    for (const std::vector<SizedAxis>& dimension : parameter.dimensions) {
      std::vector<std::string> names;
      names.reserve(dimension.size());
      for (const SizedAxis& axis : dimension) {
        names.push_back(axis.name);
      }
      described.axes.push_back(fmt::format("{}", fmt::join(names, "_")));
    }
    described.values.shape = parameter.shape();
    if (first_work(parameter.sources.front()).is_quantized()) {
      describe_codes(parameter, described);
    } else {
      described.values.name = parameter.name;
      described.values.dtype = first_work(parameter.sources.front()).stored;
    }
  }

  // Sources of one parameter are stored alike.
  void check_alike(const JaxParameter& parameter) const {
    const TensorWork& first = first_work(parameter.sources.front());
    for (const ParameterSource& source : parameter.sources) {
      for (const std::size_t index : works_[source.weight]) {
        const TensorWork& work = plan_.tensors[index];
        if (work.is_quantized() != first.is_quantized() ||
            (!work.is_quantized() && work.stored != first.stored)) {
          fail(fmt::format("{} is {} and {} {}, but both are parts of it; quantize or keep both",
                           first.name,
                           first.is_quantized() ? "quantized" : dtype_name(first.stored),
                           work.name,
                           work.is_quantized() ? "quantized" : dtype_name(work.stored)));
        }
      }
    }
  }

  void describe_codes(const JaxParameter& parameter, QwixParameter& described) const {
    const QwixCodes first = qwix_codes(checkpoint_, plan_, first_work(parameter.sources.front()));
    DType scale_dtype = first.scale_dtype;
    for (const ParameterSource& source : parameter.sources) {
      for (const std::size_t index : works_[source.weight]) {
        const QwixCodes codes = qwix_codes(checkpoint_, plan_, plan_.tensors[index]);
        if (codes.logical_type != first.logical_type ||
            codes.has_zero_points != first.has_zero_points) {
          fail(fmt::format("{} is {}{} and {} {}{}, but both are parts of it",
                           first_work(parameter.sources.front()).name,
                           first.logical_type,
                           first.has_zero_points ? " with zero points" : "",
                           plan_.tensors[index].name,
                           codes.logical_type,
                           codes.has_zero_points ? " with zero points" : ""));
        }
        scale_dtype = codes.scale_dtype == DType::kF32 ? DType::kF32 : scale_dtype;
      }
    }
    const ScaleBlocks& blocks = blocks_[plan_.parameters.size() - 1];
    described.logical_type = first.logical_type;
    described.block_in = blocks.is_whole ? 0 : blocks.cols;
    described.block_out = blocks.rows;
    described.values.name = parameter.name + ".array.qvalue";
    described.values.dtype = first.dtype;
    const std::vector<std::uint64_t> shape =
        scale_shape(plan_, first_work(parameter.sources.front()), parameter, blocks);
    described.scales = {parameter.name + ".array.scale", scale_dtype, shape};
    if (first.has_zero_points) {
      described.zero_points = {parameter.name + ".array.zero_point", first.dtype, shape};
    }
  }

  void add_targets(const JaxParameter& parameter,
                   const QwixParameter& described,
                   const std::unordered_map<std::string, TensorPlace>& places) {
    ParameterPlaces of_parameter;
    of_parameter.values = places.at(described.values.name);
    if (described.is_quantized()) {
      of_parameter.blocks =
          blocks_[static_cast<std::size_t>(&parameter - found_.parameters.data())];
      of_parameter.scales = places.at(described.scales->name);
    }
    if (described.zero_points) {
      of_parameter.zero_points = places.at(described.zero_points->name);
    }
    for (const ParameterSource& source : parameter.sources) {
      for (const std::size_t index : works_[source.weight]) {
        add_target(plan_, parameter, source, of_parameter, plan_.tensors[index]);
      }
    }
  }

  // Takes out the works that no parameter takes.
  void finish() {
    std::erase_if(plan_.tensors, [](const TensorWork& work) { return work.targets.empty(); });
    for (TensorWork& work : plan_.tensors) {
      finish_targets(plan_, work);
    }
    std::vector<std::string> names;
    for (const std::size_t weight : found_.left_out) {
      names.push_back(plan_.architecture.weights[weight].entry.name);
    }
    if (!names.empty()) {
      plan_.notices.push_back(fmt::format(
          "the JAX model leaves out {} tensors: {}{}",
          names.size(),
          fmt::join(
              names.begin(), names.begin() + std::min<std::ptrdiff_t>(3, std::ssize(names)), ", "),
          names.size() > 3 ? ", …" : ""));
    }
  }

  const Checkpoint& checkpoint_;
  Plan& plan_;
  std::vector<std::vector<std::size_t>> works_;
  JaxParameters found_;
  std::vector<ScaleBlocks> blocks_;  // of each
};

}  // namespace

void place_qwix(const Checkpoint& checkpoint, const std::string& config_json, Plan& plan) {
  QwixPlacer(checkpoint, config_json, plan).place();
}

}  // namespace quantmill
