#include "pool/memory_need.h"

#include <gtest/gtest.h>

namespace uma::pool {
namespace {

RegisteredModel model_of(const std::string& name, std::shared_ptr<const ModelFile> file) {
  RegisteredModel model;
  model.card.name = name;
  model.file = std::move(file);
  return model;
}

TEST(MeasuredNeeds, ALoadOfTheSameFileNeedsWhatTheLastOneTook) {
  const RegisteredModel model = model_of("a", std::make_shared<const ModelFile>());
  const MemoryNeed estimated{.weights = 100, .contexts = 10};
  const MemoryNeed taken{.weights = 120, .contexts = 9};
  MeasuredNeeds needs;
  EXPECT_EQ(needs.corrected(model, estimated), estimated);
  needs.note(model, estimated, taken);
  EXPECT_EQ(needs.corrected(model, estimated), taken);
  EXPECT_EQ(needs.corrected(model, {.weights = 100, .contexts = 20}), (MemoryNeed{.weights = 100, .contexts = 20}))
      << "another context was not measured";
  EXPECT_EQ(needs.corrected(model_of("a", std::make_shared<const ModelFile>()), estimated), estimated) << "another file";
}

TEST(MeasuredNeeds, AMeasurementThatWasNeededStillBelongsToItsEstimate) {
  const RegisteredModel model = model_of("a", std::make_shared<const ModelFile>());
  const MemoryNeed estimated{.weights = 100};
  MeasuredNeeds needs;
  needs.note(model, estimated, {.weights = 120});
  needs.note(model, {.weights = 120}, {.weights = 121});
  EXPECT_EQ(needs.corrected(model, estimated), (MemoryNeed{.weights = 121}));
}

}  // namespace
}  // namespace uma::pool
