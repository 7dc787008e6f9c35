#include "llm/file/safetensors_header.h"

#include <cstring>
#include <format>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/gguf_bytes.h"

namespace uma::llm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file_of(std::string_view head, std::size_t data_bytes) {
  std::string bytes;
  testing::GgufBytes::add(bytes, head.size(), 8);
  return bytes.append(head).append(data_bytes, '\0');
}

Expected<GgufHeader> read(const std::string& bytes) {
  return read_safetensors_header(bytes.size(), [&](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
    if (offset >= bytes.size()) return 0;
    // At most seven bytes at once: a short read is no end.
    const std::size_t count = std::min({into.size(), bytes.size() - offset, std::size_t{7}});
    std::memcpy(into.data(), bytes.data() + offset, count);
    return count;
  });
}

TEST(SafetensorsHeaderTest, ReadsTensors) {
  const std::string head = R"({"__metadata__": {"format": "pt"},
    "model.diffusion_model.out.0.bias": {"dtype": "F16", "shape": [3], "data_offsets": [24, 30]},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [30, 38]}})";
  const auto header = read(file_of(head, 38));
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->architecture, kDiffusionArchitecture);
  EXPECT_EQ(header->data_offset, 8 + head.size());
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_THAT(header->tensors[0].sizes, ElementsAre(3, 2)) << "in the library's order";
  const GgufTensor& second = header->tensors[1];
  EXPECT_EQ(second.name, "model.diffusion_model.out.0.bias");
  EXPECT_EQ(second.type, 1u);
  EXPECT_EQ(second.offset, 24u);
  EXPECT_EQ(second.bytes, 6u);
  EXPECT_EQ(header->tensors[2].type, kTypeNotRead);
  EXPECT_THAT(header->tensors[2].sizes, ElementsAre(1));
  EXPECT_EQ(header->weight_bytes, 38u);
}

TEST(SafetensorsHeaderTest, NamesWhatIsWrong) {
  const auto refused = [](const std::string& bytes) {
    const auto header = read(bytes);
    EXPECT_FALSE(header.has_value());
    return header ? "" : header.error().message;
  };
  const auto refused_tensor = [&](std::string_view entry) {
    return refused(file_of(std::format(R"({{"a": {}}})", entry), 24));
  };
  EXPECT_THAT(refused(""), HasSubstr("too short"));
  EXPECT_THAT(refused(std::string(8, '\xff')), HasSubstr("a wrong length"));
  EXPECT_THAT(refused(file_of("[]", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(refused(file_of("{\"a\": ", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(refused_tensor("1"), HasSubstr("tensor a is no object"));
  EXPECT_THAT(refused_tensor(R"({"shape": [6], "data_offsets": [0, 24]})"), HasSubstr("tensor a has no dtype"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F7", "shape": [6], "data_offsets": [0, 24]})"), HasSubstr("unknown dtype F7"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F32", "shape": [5], "data_offsets": [0, 24]})"), HasSubstr("its shape needs 20"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F32", "shape": [6], "data_offsets": [8, 32]})"), HasSubstr("not within the file"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F32", "shape": [6], "data_offsets": [24, 0]})"), HasSubstr("not within the file"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F32", "shape": [-6], "data_offsets": [0, 24]})"), HasSubstr("shape of tensor a"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F32", "shape": [1, 1, 1, 1, 6], "data_offsets": [0, 24]})"), HasSubstr("up to 4"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 24]})"),
              HasSubstr("has the size"));
  EXPECT_THAT(refused_tensor(R"({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})"), HasSubstr("has the size 0"));
  std::string large;
  testing::GgufBytes::add(large, kSafetensorsHeadBytesMax + 1, 8);
  const auto header =
      read_safetensors_header(kSafetensorsHeadBytesMax * 2, [&](std::uint64_t offset, std::span<std::byte> into) {
        std::memcpy(into.data(), large.data() + offset, into.size());
        return into.size();
      });
  ASSERT_FALSE(header.has_value());
  EXPECT_THAT(header.error().message, HasSubstr("larger than 8 MiB"));
}

}  // namespace
}  // namespace uma::llm
