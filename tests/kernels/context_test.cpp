#include "device/context.h"

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

void expect_usage_error(const std::string& backend, const std::string& part) {
  try {
    (void)make_context(backend);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

TEST(Context, AutoIsTheCpuAtItsBest) {
  unsetenv("QUANTMILL_FORCE_ISA");
  EXPECT_EQ(make_context("auto").backend, Backend::kCpu);
  EXPECT_EQ(make_context("auto").isa, best_isa());
}

TEST(Context, ReferenceCanBeChosen) {
  EXPECT_EQ(make_context("reference").backend, Backend::kReference);
}

TEST(Context, EveryInstructionSetUpToTheBestCanBeForced) {
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    const ForcedIsa forced(std::string(isa_name(isa)).c_str());
    if (isa <= best_isa()) {
      EXPECT_EQ(make_context("cpu").isa, isa);
    } else {
      expect_usage_error("cpu", "this machine runs");
    }
  }
}

TEST(Context, AnUnknownInstructionSetIsRefused) {
  const ForcedIsa forced("sse9");
  expect_usage_error("auto", "sse9");
}

TEST(Context, AnUnknownBackendIsRefused) {
  expect_usage_error("gpu", "gpu");
}

}  // namespace
}  // namespace quantmill
