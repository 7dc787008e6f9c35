#include "pool/memory_need.h"

#include <optional>

#include <gtest/gtest.h>

namespace uma::pool {
namespace {

RegisteredModel model_of(const std::string& name, std::shared_ptr<const ModelFile> file) {
  RegisteredModel model;
  model.card.name = name;
  model.file = std::move(file);
  return model;
}

TEST(RoughNeed, SufficesWhereThereIsRoomForSeveralLoads) {
  const MemoryNeed need{.weights = 100, .contexts = 50};
  EXPECT_TRUE(is_rough_enough(need, 450));
  EXPECT_FALSE(is_rough_enough(need, 449));
  EXPECT_FALSE(is_rough_enough(need, -1));
}

TEST(MeasuredNeeds, ALoadOfTheSameFileNeedsWhatTheLastOneTook) {
  const RegisteredModel model = model_of("a", std::make_shared<const ModelFile>());
  const MemoryNeed estimated{.weights = 100, .contexts = 10};
  const MemoryNeed taken{.weights = 120, .contexts = 9};
  MeasuredNeeds needs;
  EXPECT_EQ(needs.find(model, estimated), std::nullopt);
  needs.note(model, estimated, taken);
  EXPECT_EQ(needs.find(model, estimated), taken);
  EXPECT_EQ(needs.find(model, {.weights = 100, .contexts = 20}), std::nullopt) << "another context was not measured";
  EXPECT_EQ(needs.find(model_of("a", std::make_shared<const ModelFile>()), estimated), std::nullopt) << "another file";
}

TEST(MeasuredNeeds, AMeasurementThatWasNeededStillBelongsToItsEstimate) {
  const RegisteredModel model = model_of("a", std::make_shared<const ModelFile>());
  const MemoryNeed estimated{.weights = 100};
  MeasuredNeeds needs;
  needs.note(model, estimated, {.weights = 120});
  needs.note(model, {.weights = 120}, {.weights = 121});
  EXPECT_EQ(needs.find(model, estimated), (MemoryNeed{.weights = 121}));
}

}  // namespace
}  // namespace uma::pool
