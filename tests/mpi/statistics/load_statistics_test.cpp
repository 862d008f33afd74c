#include "pipeline/load_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "stats/import.h"
#include "tests/support/temporary_folder.h"

namespace quantmill {
namespace {

using testing::HasSubstr;

Partition split_down(const std::string& name) {
  return name.ends_with("down") ? Partition::kRow : Partition::kReplicated;
}

// Of tests/golden/dflash2-tiny.
Partition split_tiny(const std::string& name) {
  return name.ends_with("o_proj") || name.ends_with("down_proj") ? Partition::kRow
                                                                 : Partition::kReplicated;
}

// What part `part` of num_parts recorded: 61 channels split unevenly.
Statistics part_of(std::size_t part, std::size_t num_parts) {
  constexpr std::size_t kChannels = 61;
  const auto edge = [&](std::size_t index) {
    return index + (kChannels - num_parts) * index * index / (num_parts * num_parts);
  };
  const auto value = [](std::size_t channel) {
    return std::exp(std::sin(3.0 * double(channel))) / 3;
  };
  const auto input = [&](std::size_t begin, std::size_t end) {
    InputStatistics made;
    made.count = 1000;
    made.has_count = true;
    made.source = "part " + std::to_string(part);
    for (std::size_t channel = begin; channel < end; ++channel) {
      made.absmean.push_back(value(channel));
      made.sqmean.push_back(value(channel) * value(channel) * 1.7);
      made.absmax.push_back(value(channel) * 9);
    }
    return made;
  };
  return {{"layers.0.down", input(edge(part), edge(part + 1))}, {"layers.0.up", input(0, 33)}};
}

void expect_same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_TRUE(std::ranges::equal(
      a, b, {}, std::bit_cast<std::uint64_t, double>, std::bit_cast<std::uint64_t, double>));
}

void expect_same(const Statistics& a, const Statistics& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, input] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const InputStatistics& other = b.at(name);
    expect_same_bits(input.absmean, other.absmean);
    expect_same_bits(input.sqmean, other.sqmean);
    expect_same_bits(input.absmax, other.absmax);
    EXPECT_EQ(input.count, other.count);
    EXPECT_EQ(input.has_count, other.has_count);
    EXPECT_EQ(input.partition, other.partition);
    EXPECT_EQ(input.part_channels, other.part_channels);
    EXPECT_EQ(input.source, other.source);
  }
}

TEST(GatherParts, MergesToTheSameBitsOnAnyNumberOfRanks) {
  const Communicator world = Communicator::world();
  for (const std::size_t piece_bytes : {std::size_t{100}, std::size_t{64} << 20}) {
    ExchangeLimits limits;
    limits.piece_bytes = piece_bytes;
    PartExchange exchange(world, std::nullopt, limits);
    for (std::size_t num_parts = 1; num_parts <= 8; ++num_parts) {
      const auto read = [&](std::size_t part) { return part_of(part, num_parts); };
      std::vector<Statistics> alone;
      for (std::size_t part = 0; part < num_parts; ++part) {
        alone.push_back(read(part));
      }
      expect_same(merge_tensor_parallel(gather_parts(exchange, num_parts, read), split_down),
                  merge_tensor_parallel(alone, split_down));
    }
  }
}

TEST(GatherParts, PartsWithoutInputsKeepTheirPlace) {
  const Communicator world = Communicator::world();
  PartExchange exchange(world, std::nullopt);
  const auto parts = gather_parts(exchange, 5, [](std::size_t part) {
    return part % 2 == 0 ? Statistics{} : part_of(part, 5);
  });
  ASSERT_EQ(parts.size(), 5U);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    expect_same(parts[part], part % 2 == 0 ? Statistics{} : part_of(part, 5));
  }
}

TEST(GatherParts, EachPartIsReadOnceByOneRank) {
  const Communicator world = Communicator::world();
  PartExchange exchange(world, std::nullopt);
  std::vector<double> reads(7);
  gather_parts(exchange, reads.size(), [&](std::size_t part) {
    reads[part] += 1;
    return part_of(part, 7);
  });
  world.sum_disjoint(reads);
  EXPECT_THAT(reads, testing::Each(1.0));
}

TEST(GatherParts, OneRanksFailureIsOneErrorEverywhere) {
  const Communicator world = Communicator::world();
  PartExchange exchange(world, std::nullopt);
  const auto last = static_cast<std::size_t>(world.size() - 1);
  try {
    gather_parts(exchange, last + 1, [&](std::size_t part) {
      if (part == last) {
        throw Error(ErrorCode::kInput, "part " + std::to_string(part) + " is torn");
      }
      return part_of(part, last + 1);
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_TRUE(error.is_agreed());
    EXPECT_THAT(error.message(), HasSubstr("part " + std::to_string(last) + " is torn"));
  }
}

TEST(LoadStatistics, OfFilesIsWhatOneProcessImports) {
  const Communicator world = Communicator::world();
  for (const std::string form : {"calib", "calib1", "calib4"}) {
    const auto prefix = test::golden("dflash2-tiny") / "calib" / form;
    expect_same(load_statistics(world, std::nullopt, Log(), prefix, split_tiny),
                import_tensor_parallel(prefix, split_tiny));
  }
}

// What rank 0 of a job on this device logs.
std::string log_of(const Communicator& world,
                   const std::optional<DeviceIdentity>& device,
                   const std::string& form) {
  const test::TemporaryFolder folder;
  LogOptions options;
  options.json_file = folder.path() / "log";
  const Log log = world.rank() == 0 ? Log::open(options) : Log();
  load_statistics(world, device, log, test::golden("dflash2-tiny") / "calib" / form, split_tiny);
  std::ifstream file(*options.json_file);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LoadStatistics, SaysHowPartsTravelledWhereTheyDid) {
  const Communicator world = Communicator::world();
  const DeviceIdentity shared{0, "GPU-0"};
  const std::string one_part = log_of(world, shared, "calib1");
  const std::string of_cpus = log_of(world, std::nullopt, "calib4");
  const std::string of_gpus = log_of(world, shared, "calib4");
  if (world.rank() > 0) {
    return;
  }
  EXPECT_EQ(one_part, "");
  if (world.size() == 1) {
    EXPECT_EQ(of_gpus, "");
    return;
  }
  EXPECT_THAT(of_cpus, HasSubstr("\"statistics: merged over MPI\""));
  const std::string reason = nccl_trouble().empty() ? "ranks 0 and 1 share a GPU" : nccl_trouble();
  EXPECT_THAT(of_gpus, HasSubstr("\"statistics: merged over MPI (" + reason + ")\""));
}

}  // namespace
}  // namespace quantmill
