#include "device/context.h"
#include "device/cuda_gpu.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace quantmill {
namespace {

// Sets QUANTMILL_FORCE_ISA while it lives.
class ForcedIsa {
 public:
  explicit ForcedIsa(const char* name) {
    if (const char* old = std::getenv(kName)) {
      old_ = old;
    }
    setenv(kName, name, 1);
  }

  ~ForcedIsa() {
    if (old_) {
      setenv(kName, old_->c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }

  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  static constexpr const char* kName = "QUANTMILL_FORCE_ISA";
  std::optional<std::string> old_;
};

Device open(const std::string& backend) {
  DeviceRequest request;
  request.backend = backend;
  return open_device(request);
}

void expect_error(const std::string& backend, const std::string& part, ErrorCode code) {
  try {
    (void)open(backend);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

TEST(Context, AutoIsTheGpuWhereThereIsOneAndTheCpuAtItsBestElsewhere) {
  unsetenv("QUANTMILL_FORCE_ISA");
  std::string reason;
  const bool has_gpu = count_cuda_gpus(reason) > 0;
  const Device device = open("auto");
  EXPECT_EQ(device.context.backend, has_gpu ? Backend::kGpu : Backend::kCpu);
  EXPECT_EQ(device.context.isa, best_isa());
  EXPECT_EQ(device.context.gpu, device.gpu.get());
  EXPECT_EQ(device.notice.empty(), has_gpu || !is_built_with_cuda()) << device.notice;
}

TEST(Context, AGpuThatIsAskedForAndMissingIsRefused) {
  std::string reason;
  if (count_cuda_gpus(reason) > 0) {
    GTEST_SKIP() << "this machine has one";
  }
  EXPECT_FALSE(reason.empty());
  expect_error("cuda", reason, ErrorCode::kDevice);
}

TEST(Context, TheCpuAndTheReferenceCanBeChosen) {
  unsetenv("QUANTMILL_FORCE_ISA");
  EXPECT_EQ(open("reference").context.backend, Backend::kReference);
  EXPECT_EQ(open("reference").context.gpu, nullptr);
  EXPECT_EQ(describe_backend(open("reference").context), "reference");
  EXPECT_EQ(describe_backend(open("cpu").context),
            "cpu (" + std::string(isa_name(best_isa())) + ")");
}

TEST(Context, AnEmulatedGpuHasWhatIsAskedFor) {
  DeviceRequest request;
  request.backend = "emulated";
  request.num_threads = 2;
  request.gpu_memory = std::uint64_t{100} << 20;
  const Device device = open_device(request);
  ASSERT_EQ(device.context.backend, Backend::kGpu);
  EXPECT_EQ(describe_backend(device.context), "emulated");
  EXPECT_LE(device.gpu->memory_bytes(), *request.gpu_memory);
  EXPECT_GE(device.gpu->memory_bytes(), *request.gpu_memory - 4096);
  EXPECT_EQ(device.gpu->lane_bytes(), device.gpu->memory_bytes() / 4);
  request.gpu_memory = std::uint64_t{1} << 20;
  try {
    (void)open_device(request);
    FAIL() << "1 MB is not enough";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_NE(error.message().find("--gpu-memory is 1.0 MiB"), std::string::npos)
        << error.message();
  }
}

TEST(Context, EveryInstructionSetUpToTheBestCanBeForced) {
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    const ForcedIsa forced(std::string(isa_name(isa)).c_str());
    if (isa <= best_isa()) {
      EXPECT_EQ(make_context("cpu").isa, isa);
    } else {
      expect_error("cpu", "this machine runs", ErrorCode::kUsage);
    }
  }
}

TEST(Context, AnUnknownInstructionSetIsRefused) {
  const ForcedIsa forced("sse9");
  expect_error("cpu", "sse9", ErrorCode::kUsage);
}

TEST(Context, AnUnknownBackendIsRefused) {
  expect_error("gpu", "gpu", ErrorCode::kUsage);
}

}  // namespace
}  // namespace quantmill
