#include "stats/pickle.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quantmill {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

Pickle parse(const std::string& bytes) {
  return parse_pickle(std::as_bytes(std::span(bytes)));
}

std::string refusal(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.message();
  }
  return "nothing was refused";
}

template <typename T>
T value_of(const std::string& bytes) {
  const Pickle pickle = parse(bytes);
  const T* value = pickle.get_if<T>(pickle.root);
  EXPECT_NE(value, nullptr);
  return value == nullptr ? T{} : *value;
}

// The arguments of torch's _rebuild_tensor_v2 up to the shape: 4 floats in storage "0", offset 1.
constexpr const char* kRebuild = "ctorch._utils\n_rebuild_tensor_v2\n";
const std::string kStorage =
    "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
    "0X\x03\0\0\0cpuK\x04tQ"s;

// What CPython's pickle.dumps writes for these values.
TEST(Pickle, ReadsIntegers) {
  EXPECT_EQ(value_of<std::int64_t>("\x80\x02K\xff."), 255);
  EXPECT_EQ(value_of<std::int64_t>("\x80\x02M\xff\xff."), 65535);
  EXPECT_EQ(value_of<std::int64_t>("\x80\x02J\xff\xff\xff\xff."), -1);
  EXPECT_EQ(value_of<std::int64_t>("\x80\x02\x8a\x05\0\0\0\0\x01."s), std::int64_t{1} << 32);
  EXPECT_EQ(value_of<std::int64_t>("\x80\x02\x8a\x05\0\0\0\0\xff."s), -(std::int64_t{1} << 32));
  EXPECT_EQ(value_of<std::int64_t>("\x80\x02\x8a\0."s), 0);
}

TEST(Pickle, ReadsOtherScalars) {
  EXPECT_EQ(value_of<double>("\x80\x02G?\xf8\0\0\0\0\0\0."s), 1.5);
  EXPECT_EQ(value_of<bool>("\x80\x02\x88."), true);
  EXPECT_EQ(value_of<bool>("\x80\x02\x89."), false);
  parse("\x80\x02N.");
}

TEST(Pickle, ReadsTextsOfAllThreeOpcodes) {
  for (const std::string& bytes : {"\x80\x02X\x02\0\0\0ab."s,
                                   "\x80\x04\x8c\x02"s + "ab.",
                                   "\x80\x04\x8d\x02\0\0\0\0\0\0\0ab."s}) {
    const Pickle pickle = parse(bytes);
    EXPECT_EQ(*pickle.get_if<std::string_view>(pickle.root), "ab");
  }
}

TEST(Pickle, ReadsContainersByAllOpcodes) {
  EXPECT_EQ(value_of<PickleTuple>("\x80\x02).").items.size(), 0U);
  EXPECT_EQ(value_of<PickleTuple>("\x80\x02K\x01\x85.").items.size(), 1U);
  EXPECT_EQ(value_of<PickleTuple>("\x80\x02K\x01K\x02\x86.").items.size(), 2U);
  EXPECT_EQ(value_of<PickleTuple>("\x80\x02K\x01K\x02K\x03\x87.").items.size(), 3U);
  EXPECT_EQ(value_of<PickleTuple>("\x80\x02(K\x01K\x02K\x03K\x04t.").items.size(), 4U);
  EXPECT_EQ(value_of<PickleList>("\x80\x02]K\x01"
                                 "a(K\x02K\x03"
                                 "e.")
                .items.size(),
            3U);
  EXPECT_EQ(value_of<PickleDict>("\x80\x02}K\x01K\x02s(K\x03K\x04K\x05K\x06u.").items.size(), 3U);
}

TEST(Pickle, KeepsTheOrderOfTuples) {
  const Pickle pickle = parse("\x80\x02K\x07K\x08\x86.");
  EXPECT_EQ(pickle.sizes(pickle.root), (std::vector<std::uint64_t>{7, 8}));
}

TEST(Pickle, RemembersByAllOpcodes) {
  EXPECT_EQ(value_of<PickleTuple>("\x80\x02K\x01q\0h\0\x86."s).items,
            (std::vector<PickleId>{0, 0}));
  EXPECT_EQ(value_of<PickleTuple>("\x80\x02K\x01r\x01\0\0\0j\x01\0\0\0\x86."s).items,
            (std::vector<PickleId>{0, 0}));
  EXPECT_EQ(value_of<PickleTuple>("\x80\x04K\x01\x94K\x02\x94h\x01\x87."s).items,
            (std::vector<PickleId>{0, 1, 1}));
}

TEST(Pickle, ReadsATensor) {
  // What is parsed refers to the bytes.
  const std::string bytes =
      "\x80\x02"s + kRebuild + "(" + kStorage + "K\x01K\x03\x85K\x01\x85\x89)tR.";
  const Pickle pickle = parse(bytes);
  const auto* tensor = pickle.get_if<TorchTensor>(pickle.root);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->offset, 1U);
  EXPECT_EQ(pickle.sizes(tensor->sizes), std::vector<std::uint64_t>{3});
  EXPECT_EQ(pickle.sizes(tensor->strides), std::vector<std::uint64_t>{1});
  const auto* storage = pickle.get_if<TorchStorage>(tensor->storage);
  ASSERT_NE(storage, nullptr);
  EXPECT_EQ(storage->type, TorchType::kF32);
  EXPECT_EQ(storage->num_elements, 4U);
  EXPECT_EQ(*pickle.get_if<std::string_view>(storage->key), "0");
}

TEST(Pickle, KnowsTheSizesOfStorages) {
  EXPECT_EQ(torch_type_bytes(torch_storage_type("BFloat16Storage").value()), 2U);
  EXPECT_EQ(torch_type_bytes(torch_storage_type("DoubleStorage").value()), 8U);
  EXPECT_EQ(torch_type_name(torch_storage_type("LongStorage").value()), "int64");
  EXPECT_FALSE(torch_storage_type("UntypedStorage").has_value());
}

TEST(Pickle, TakesAttributesOfAnOrderedDictAndDropsThem) {
  EXPECT_EQ(value_of<PickleDict>("\x80\x02"
                                 "ccollections\nOrderedDict\n)R}b.")
                .items.size(),
            0U);
}

TEST(Pickle, RefusesEveryOtherOpcodeByName) {
  EXPECT_THAT(refusal("\x80\x02"
                      "0."),
              HasSubstr("byte 2: the opcode POP is refused"));
  EXPECT_THAT(refusal("\x80\x04)\x81."), HasSubstr("NEWOBJ is refused"));
  EXPECT_THAT(refusal("(ios\nsystem\n."), HasSubstr("INST is refused"));
  EXPECT_THAT(refusal("\x80\x02\x82\x01."), HasSubstr("EXT1 is refused"));
  EXPECT_THAT(refusal("\x80\x02\x01."), HasSubstr("no pickle opcode 0x01"));
}

TEST(Pickle, RefusesEveryOtherGlobalByName) {
  EXPECT_THAT(refusal("\x80\x02"
                      "cos\nsystem\n."),
              HasSubstr("global os.system is refused"));
  EXPECT_THAT(refusal("\x80\x02"
                      "ctorch\nload\n."),
              HasSubstr("torch.load is refused"));
  // A class of the right name in another module.
  EXPECT_THAT(refusal("\x80\x02"
                      "cevil\nFloatStorage\n."),
              HasSubstr("evil.FloatStorage is refused"));
  EXPECT_THAT(refusal("\x80\x04\x8c\x02os\x8c\x06system\x93."), HasSubstr("os.system is refused"));
}

TEST(Pickle, RefusesCallsThatDoNotMakeTensors) {
  EXPECT_THAT(refusal("\x80\x02"
                      "ctorch\nFloatStorage\n)R."),
              HasSubstr("type is called"));
  EXPECT_THAT(refusal("\x80\x02"
                      "ccollections\nOrderedDict\n]\x85R."),
              HasSubstr("with arguments"));
  EXPECT_THAT(refusal("\x80\x02"s + kRebuild + ")R."), HasSubstr("wrong number of arguments"));
  EXPECT_THAT(refusal("\x80\x02})R."), HasSubstr("what is called is of the wrong type"));
  EXPECT_THAT(refusal("\x80\x02K\x01}b."), HasSubstr("attributes are set on is of the wrong type"));
}

TEST(Pickle, RefusesTensorsThatCannotBe) {
  const std::string begin = "\x80\x02"s + kRebuild + "(" + kStorage;
  EXPECT_THAT(refusal(begin + "J\xff\xff\xff\xffK\x03\x85K\x01\x85\x89)tR."),
              HasSubstr("offset is -1"));
  EXPECT_THAT(refusal(begin + "K\x01K\x03\x85)\x89)tR."), HasSubstr("as many strides"));
  EXPECT_THAT(refusal(begin + "K\x01N\x85K\x01\x85\x89)tR."),
              HasSubstr("shape is of the wrong type"));
  const std::string many = "(" + std::string(65, 'N') + "t";
  EXPECT_THAT(refusal(begin + "K\x01" + many + many + "\x89)tR."), HasSubstr("65 dimensions"));
}

TEST(Pickle, RefusesStoragesThatCannotBe) {
  EXPECT_THAT(refusal("\x80\x02K\x01Q."), HasSubstr("persistent id"));
  EXPECT_THAT(refusal("\x80\x02)Q."), HasSubstr("not that of a storage"));
  const std::string typed = "\x80\x02(X\x07\0\0\0storageccollections\nOrderedDict\n)NK\x04tQ."s;
  EXPECT_THAT(refusal(typed), HasSubstr("storage's key is of the wrong type"));
  const std::string named =
      "\x80\x02(X\x07\0\0\0storageccollections\nOrderedDict\nX\x01\0\0\0xNK\x04tQ."s;
  EXPECT_THAT(refusal(named), HasSubstr("storage's type is of the wrong type"));
}

TEST(Pickle, RefusesAStackThatLacksWhatIsAsked) {
  EXPECT_THAT(refusal("\x80\x02."), HasSubstr("the stack lacks a value"));
  EXPECT_THAT(refusal("\x80\x02t."), HasSubstr("lacks a MARK"));
  // What lies below a MARK is out of reach.
  EXPECT_THAT(refusal("\x80\x02K\x01(\x85t."), HasSubstr("the stack lacks a value"));
  EXPECT_THAT(refusal("\x80\x02K\x01K\x02."), HasSubstr("left over"));
  EXPECT_THAT(refusal("\x80\x02}(K\x01u."), HasSubstr("a key has no value"));
  EXPECT_THAT(refusal("\x80\x02h\0."s), HasSubstr("memo slot 0 is empty"));
}

TEST(Pickle, RefusesAMemoSlotFarAway) {
  EXPECT_THAT(refusal("\x80\x02K\x01r\xff\xff\xff\xff."), HasSubstr("no memo slot 4294967295"));
}

TEST(Pickle, RefusesBytesThatAreNotThere) {
  EXPECT_THAT(refusal(""), HasSubstr("1 bytes are wanted, 0 are left"));
  EXPECT_THAT(refusal("\x80\x02X\xff\xff\xff\x7f"
                      "ab"),
              HasSubstr("2147483647 bytes are wanted, 2 are left"));
  EXPECT_THAT(refusal("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                      "ab"),
              HasSubstr("are wanted, 2 are left"));
  EXPECT_THAT(refusal("\x80\x02"
                      "ctorch"),
              HasSubstr("a line has no end"));
  EXPECT_THAT(refusal("\x80\x02\x8a\x09\1\1\1\1\1\1\1\1\1."), HasSubstr("does not fit 64 bits"));
}

TEST(Pickle, RefusesUnknownProtocols) {
  EXPECT_THAT(refusal("\x80\x06N."), HasSubstr("protocol 6 is not supported"));
  EXPECT_THAT(refusal("\x80\x01N."), HasSubstr("protocol 1 is not supported"));
}

TEST(Pickle, SharesWhatABombWouldMultiply) {
  // 2^200 leaves if it were copied.
  std::string bomb = "\x80\x02(]q\0"s;
  for (int level = 0; level < 200; ++level) {
    bomb += "h\0h\0\x86q\0"s;
  }
  const Pickle pickle = parse(bomb + "t.");
  EXPECT_LT(pickle.values.size(), 300U);
}

TEST(Pickle, NestsWithoutRecursion) {
  std::string deep = "\x80\x02]";
  for (int level = 0; level < 1'000'000; ++level) {
    deep += '\x85';
  }
  EXPECT_EQ(parse(deep + ".").values.size(), 1'000'001U);
}

}  // namespace
}  // namespace quantmill
