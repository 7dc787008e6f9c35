// A source of models for tests of the router. The test decides when a load ends.
#pragma once

#include <algorithm>
#include <format>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/model_loader.h"

namespace uma::engine {

class NamedModels final : public ModelLoader {
 public:
  // The first name is the default model.
  explicit NamedModels(std::vector<std::string> names = {"fake"}) : names_(std::move(names)) {}

  [[nodiscard]] Expected<std::string> resolve(const std::string& name) const override {
    if (name.empty()) return names_.front();
    if (std::ranges::contains(names_, name)) return name;
    return fail(ErrorCode::model_unknown, std::format("no model \"{}\"", name));
  }
  [[nodiscard]] std::vector<ModelInfo> list() const override {
    std::vector<ModelInfo> infos;
    for (const std::string& name : names_) infos.push_back({.name = name});
    return infos;
  }
  void add_metrics(MetricsSnapshot&) const override {}
  void start(LoaderDelegate&) override {}
  void load(const std::string& model) override {
    if (throws) throw std::bad_alloc();
    wanted.push_back(model);
  }
  void unload(const std::string&, Promise<Unit> reply) override { reply(Unit{}); }
  void cancel_load(const std::string& model) override { cancelled.push_back(model); }
  void report_backlog(const std::string& model) override { queued.push_back(model); }
  void report_lost(const std::string& model) override { lost.push_back(model); }
  void stop() override {}

  bool throws = false;
  std::vector<std::string> wanted;  // The requested loads, in order.
  std::vector<std::string> cancelled;
  std::vector<std::string> queued;
  std::vector<std::string> lost;

 private:
  const std::vector<std::string> names_;
};

}  // namespace uma::engine
