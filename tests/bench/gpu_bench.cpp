// Every kernel on data that lies on the GPU, beside a copy within the device in the same run.
//
//   gpu_bench [--backend cuda|emulated] [--rows N] [--cols N] [--seconds S] [--json FILE]
//
// A kernel's bytes are those of its operands, once each, whatever it keeps in between; a copy reads
// and writes, which counts twice. Time is that of whole calls, medians of as many as fit --seconds:
// each starts kernels and waits for them, which is measured too, by a call on one block. Shares of
// the copy are without it. "host" in a name: the other side is the host's memory.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "device/context.h"
#include "device/cuda_gpu.h"
#include "device/emulated_gpu.h"
#include "kernels/compare.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "kernels/gptq.h"
#include "kernels/int4.h"
#include "kernels/int4_pack.h"
#include "kernels/magnitudes.h"
#include "kernels/mx.h"
#include "kernels/nvfp4.h"
#include "kernels/scale.h"
#include "tests/bench/gpu_bench_data.h"

namespace quantmill::bench {
namespace {

struct Options {
  std::string backend = "cuda";
  std::size_t rows = 4096;
  std::size_t cols = 7168;
  double seconds = 0.3;
  std::string json;
};

// Half of it is for the buffers of Data, which take some 16 bytes a weight; the other for what
// kernels take while they work, mx_error_curve most: 25 doubles for each 32 weights.
std::size_t gpu_memory(const Options& options) {
  return 2 * (options.rows * options.cols * 24 + 2 * Gpu::kSmallestBytes);
}

std::unique_ptr<GpuDriver> open_driver(const Options& options) {
  if (options.backend == "cuda") {
    return open_cuda_gpu(0);
  }
  if (options.backend != "emulated") {
    throw std::invalid_argument("--backend is cuda or emulated");
  }
  return open_emulated_gpu(0, gpu_memory(options));
}

class Bench {
 public:
  Bench(Data& data, double seconds) : data_(data), seconds_(seconds) {}

  // What starting and waiting takes: a call on next to nothing.
  void measure_calls(const std::function<void()>& copy, const std::function<void()>& kernel) {
    copy_call_ = median(copy);
    kernel_call_ = median(kernel);
    std::printf(
        "a call: copying %.1f us, a kernel %.1f us\n", 1e6 * copy_call_, 1e6 * kernel_call_);
  }

  // Bytes of operands for each weight. The first is "copy", which others are a share of.
  void run(const std::string& name, double bytes_each, const std::function<void()>& body) {
    const bool is_copy = name == "copy";
    const double seconds = median(body);
    const double bytes = bytes_each * weights();
    // Of the device alone, where the call is not most of it.
    const double alone = std::max(seconds - (is_copy ? copy_call_ : kernel_call_), seconds / 10);
    copy_rate_ = is_copy ? bytes / alone : copy_rate_;
    const double share = bytes / alone / copy_rate_;
    found_[name] = {{"seconds", seconds},
                    {"gb_per_second", 1e-9 * bytes / seconds},
                    {"gb_per_second_without_call", 1e-9 * bytes / alone},
                    {"share_of_copy", share}};
    std::printf("%-32s %10.1f us %8.1f GB/s, without the call %8.1f GB/s, %5.1f %% of the copy\n",
                name.c_str(),
                1e6 * seconds,
                1e-9 * bytes / seconds,
                1e-9 * bytes / alone,
                100 * share);
  }

  void run_curve(const std::string& name, const MxSpec& spec, std::size_t candidates) {
    std::vector<double> sums(candidates * data_.cols / kMxBlock);
    const double seconds = median([&] {
      mx_error_curve(data_.context,
                     spec,
                     data_.matrix(),
                     data_.importance,
                     {data_.candidates.data(), candidates, data_.cols},
                     sums);
    });
    const double rate = static_cast<double>(candidates) * weights() / seconds * 1e-9;
    found_[name] = {
        {"seconds", seconds}, {"candidates", candidates}, {"g_weight_candidates_per_second", rate}};
    std::printf(
        "%-32s %10.1f us %9.1f G weights x candidates/s\n", name.c_str(), 1e6 * seconds, rate);
  }

  [[nodiscard]] nlohmann::ordered_json calls() const {
    return {{"copy", copy_call_}, {"kernel", kernel_call_}};
  }

  [[nodiscard]] const nlohmann::ordered_json& found() const { return found_; }

 private:
  [[nodiscard]] double weights() const { return static_cast<double>(data_.weights); }

  // Seconds of a call, after two that do not count.
  [[nodiscard]] double median(const std::function<void()>& body) const {
    using Clock = std::chrono::steady_clock;
    std::vector<double> taken;
    double all = 0;
    for (int run = -2; run < 3 || (all < seconds_ && run < 1000); ++run) {
      const auto begun = Clock::now();
      body();
      const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
      if (run >= 0) {
        taken.push_back(seconds);
        all += seconds;
      }
    }
    std::ranges::sort(taken);
    return taken[taken.size() / 2];
  }

  Data& data_;
  double seconds_;
  double copy_call_ = 0;
  double kernel_call_ = 0;
  double copy_rate_ = 0;
  nlohmann::ordered_json found_;
};

void bench_copies(Bench& bench, Data& data) {
  const auto small_copy = [&data] {
    const GpuLane lane = data.context.gpu->lane();
    lane.queue().copy(data.other.bytes().first(256), data.values.bytes().data());
    lane.queue().finish("copying");
  };
  bench.measure_calls(small_copy, [&data] {
    mx_quantize(data.context,
                {},
                FloatMatrix{data.values.all().data(), 1, kMxBlock},
                data.codes.first(kMxBlock / 2),
                data.scales.first(1));
  });
  const GpuLane lane = data.context.gpu->lane();
  bench.run("copy", 8, [&] {
    lane.queue().copy(data.other.bytes(), data.values.bytes().data());
    lane.queue().finish("copying");
  });
  bench.run("copy from host", 4, [&] {
    lane.queue().upload(data.other.bytes().data(), std::as_bytes(std::span(data.host)));
    lane.queue().finish("copying");
  });
  bench.run("copy to host", 4, [&] {
    lane.queue().download(std::as_writable_bytes(std::span(data.host)), data.values.bytes().data());
  });
}

void bench_floats(Bench& bench, Data& data) {
  const Context& on = data.context;
  bench.run("encode_bf16", 6, [&] {
    encode_from_float(on, data.matrix(), DType::kBf16, data.stored.bytes());
  });
  bench.run("decode_bf16 from host", 6, [&] {
    const auto bytes = std::as_bytes(std::span(data.host)).first(2 * data.weights);
    decode_to_float(on, DType::kBf16, bytes, data.other_matrix());
  });
  bench.run("decode_bf16", 6, [&] {
    decode_to_float(on, DType::kBf16, data.stored.bytes(), data.other_matrix());
  });
  const std::span ones(data.ones);
  bench.run("scale_matrix", 8, [&] {
    scale_matrix(on,
                 data.other_matrix(),
                 {.columns = ones.first(data.cols), .row_divisors = ones.first(data.rows)});
  });
  bench.run("add_errors", 8, [&] {
    ErrorSums sums;
    add_errors(on, data.matrix(), data.other_matrix(), sums, data.importance);
  });
  bench.run("add_magnitudes", 4, [&] {
    std::vector<double> shares(data.cols);
    add_magnitudes(on, data.matrix(), data.importance, {data.column_sums, shares}, data.row_sums);
  });
  bench.run("block_amax", 4, [&] {
    std::vector<float> amax(data.tile_scales.all().size());
    block_amax(on, data.matrix(), kTiles, {amax.data(), data.tiles().rows, data.tiles().cols});
  });
}

void bench_mx(Bench& bench, Data& data) {
  const Context& on = data.context;
  const std::span scales = data.scales.first(data.weights / kMxBlock);
  const std::pair<const char*, ElementFormat> elements[] = {{"e2m1", ElementFormat::kE2m1},
                                                            {"e2m3", ElementFormat::kE2m3},
                                                            {"e3m2", ElementFormat::kE3m2},
                                                            {"e4m3", ElementFormat::kE4m3},
                                                            {"e5m2", ElementFormat::kE5m2}};
  for (const auto& [name, element] : elements) {
    const std::string end = std::string("/") + name;
    const double bytes = 4 + static_cast<double>(element_bits(element)) / 8 + 1.0 / kMxBlock;
    const std::span packed = data.packed(element);
    bench.run("mx_quantize" + end, bytes, [&, kind = element] {
      mx_quantize(on, {.element = kind}, data.matrix(), packed, scales);
    });
    bench.run("mx_quantize, mse" + end, bytes, [&, kind = element] {
      const MxSpec spec{.element = kind, .scale_rule = ScaleRule::kMse};
      mx_quantize(on, spec, data.matrix(), packed, scales, data.importance);
    });
    bench.run("mx_encode" + end, bytes, [&, kind = element] {
      mx_encode(on, kind, data.matrix(), scales, packed);
    });
    bench.run("mx_dequantize" + end, bytes, [&, kind = element] {
      mx_dequantize(on, kind, packed, scales, data.other_matrix());
    });
  }
  bench.run("mx_quantize/e2m1 to host", 4.53125, [&] {
    mx_quantize(on, {}, data.matrix(), data.host_codes, data.host_scales);
  });
}

void bench_curves(Bench& bench) {
  for (const std::size_t candidates : {std::size_t{11}, kMostCandidates}) {
    const std::string end = " of " + std::to_string(candidates);
    bench.run_curve("mx_error_curve/e2m1" + end, {}, candidates);
    bench.run_curve("mx_error_curve/e2m1, mse" + end, {.scale_rule = ScaleRule::kMse}, candidates);
    bench.run_curve("mx_error_curve/e2m1, seed" + end, {.ties = TieRule::kSeed}, candidates);
    bench.run_curve("mx_error_curve/e4m3" + end, {.element = ElementFormat::kE4m3}, candidates);
  }
}

void bench_nvfp4(Bench& bench, Data& data) {
  const Context& on = data.context;
  const std::span scales = data.scales.all();
  bench.run("nvfp4_search_scales", 4.0625, [&] {
    nvfp4_search_scales(on, data.matrix(), kGlobal, data.importance, scales);
  });
  bench.run("nvfp4_block_scales", 4.0625, [&] {
    nvfp4_block_scales(on, data.matrix(), kGlobal, scales);
  });
  bench.run("nvfp4_quantize", 4.5625, [&] {
    nvfp4_quantize(on, data.matrix(), scales, kGlobal, data.nibbles());
  });
  bench.run("nvfp4_dequantize", 4.5625, [&] {
    nvfp4_dequantize(on, data.nibbles(), scales, kGlobal, data.other_matrix());
  });
}

void bench_fp8(Bench& bench, Data& data) {
  const Context& on = data.context;
  bench.run("fp8_quantize", 5, [&] {
    fp8_quantize(on, data.matrix(), data.tiles(), kTiles, data.codes.all());
  });
  bench.run("fp8_dequantize", 5, [&] {
    fp8_dequantize(on, data.codes.all(), data.tiles(), kTiles, data.other_matrix());
  });
}

void bench_integers(Bench& bench, Data& data) {
  const Context& on = data.context;
  const std::span zeros = data.zero_points.all();
  const std::span codes = data.integers.all();
  bench.run("int_search_scales", 4 + 5.0 / kGroup, [&] {
    int_search_scales(on, kInt4, data.matrix(), data.importance, data.groups(), zeros);
  });
  bench.run("int_scales", 4 + 5.0 / kGroup, [&] {
    int_scales(on, kInt4, data.matrix(), 1, data.groups(), zeros);
  });
  bench.run("int_quantize", 5 + 5.0 / kGroup, [&] {
    int_quantize(on, kInt4, data.matrix(), data.groups(), zeros, codes);
  });
  bench.run("int_dequantize", 5 + 5.0 / kGroup, [&] {
    int_dequantize(on, codes, data.groups(), zeros, {}, data.other_matrix());
  });
  bench.run("int_pack_columns", 1.5, [&] {
    int_pack_columns(on, {}, codes, data.rows, data.cols, data.nibbles());
  });
  bench.run("int_unpack_columns", 1.5, [&] {
    int_unpack_columns(on, {}, data.nibbles(), data.rows, data.cols, codes);
  });
  bench.run("int_pack_rows", 1.5, [&] {
    int_pack_rows(on, {}, codes, data.rows, data.cols, data.nibbles());
  });
  bench.run("int_unpack_rows", 1.5, [&] {
    int_unpack_rows(on, {}, data.nibbles(), data.rows, data.cols, codes);
  });
  const RoundingGrid grid{.is_integer = true, .smallest = -8, .largest = 7};
  bench.run("gptq_round", 8 + 5.0 / kGroup, [&] {
    gptq_round(on, grid, data.feedback, data.matrix(), data.groups(), zeros, data.other_matrix());
  });
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) {
      throw std::invalid_argument(name + " needs a value");
    }
    const std::string value = argv[i + 1];
    if (name == "--backend") {
      options.backend = value;
    } else if (name == "--rows") {
      options.rows = std::stoul(value);
    } else if (name == "--cols") {
      options.cols = std::stoul(value);
    } else if (name == "--seconds") {
      options.seconds = std::stod(value);
    } else if (name == "--json") {
      options.json = value;
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  if (options.rows % 8 != 0 || options.cols % kGroup != 0 || options.rows * options.cols == 0) {
    throw std::invalid_argument("--rows is a multiple of 8, --cols of 128");
  }
  return options;
}

void run(const Options& options) {
  Gpu gpu(open_driver(options), gpu_memory(options), 1);
  Data data({Backend::kGpu, best_isa(), &gpu}, options.rows, options.cols);
  Bench bench(data, options.seconds);
  bench_copies(bench, data);
  bench_floats(bench, data);
  bench_mx(bench, data);
  bench_curves(bench);
  bench_nvfp4(bench, data);
  bench_fp8(bench, data);
  bench_integers(bench, data);
  if (!options.json.empty()) {
    const nlohmann::ordered_json found = {{"device", gpu.driver().name()},
                                          {"rows", options.rows},
                                          {"cols", options.cols},
                                          {"call_seconds", bench.calls()},
                                          {"kernels", bench.found()}};
    std::ofstream file(options.json);
    file << found.dump(1) << '\n';
    if (!file.flush()) {
      throw std::runtime_error("can't write " + options.json);
    }
  }
}

}  // namespace
}  // namespace quantmill::bench

int main(int argc, char** argv) {
  try {
    quantmill::bench::run(quantmill::bench::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
