#include "pool/eviction_plan.h"

#include <algorithm>
#include <format>

#include "base/text.h"

namespace uma::pool {
namespace {

// Idle time relative to the cost of loading the model again.
double value_of(const ModelView& model) {
  const double cost = std::max(1.0, model.load_ms) * std::max(1e-3, model.weight);
  return to_ms(model.idle) / cost;
}

// A held model has already been asked to become free.
bool is_settled(const ModelView& model, const EvictionOptions& options) {
  return (model.idle >= options.min_loaded || model.is_held) && model.loaded_for >= options.min_loaded;
}

bool may_lose_contexts(const ModelView& model, const EvictionOptions& options) {
  return model.is_idle() && !model.is_pinned && is_settled(model, options);
}

class Planner {
 public:
  Planner(std::uint64_t shortage, std::span<const ModelView> models, const EvictionOptions& options)
      : shortage_(shortage), options_(options) {
    for (const ModelView& model : models) order_.push_back(&model);
    std::ranges::stable_sort(order_, std::greater(), [](const ModelView* model) { return value_of(*model); });
  }

  EvictionPlan plan() {
    drop_warm();
    drop_contexts();
    unload();
    if (is_enough()) {
      leave_out_what_is_not_needed();
      return std::move(plan_);
    }
    // All bytes that could be freed once busy and recently used models are idle.
    std::uint64_t possible = 0;
    for (const ModelView* model : order_) {
      possible += model->warm_bytes + (model->is_pinned ? 0 : model->weight_bytes + model->context_bytes);
    }
    const std::uint64_t freed = plan_.bytes_freed;
    const bool may_fit = possible >= shortage_;
    return {.outcome = may_fit ? Outcome::wait : Outcome::refuse,
            .steps = {},
            .bytes_held = possible - freed,
            .holds = may_fit ? holds(freed) : std::vector<std::string>()};
  }

 private:
  [[nodiscard]] bool is_enough() const { return plan_.bytes_freed >= shortage_; }
  void add(StepKind kind, const ModelView& model, std::uint64_t bytes) {
    if (bytes == 0) return;
    plan_.steps.push_back({kind, model.name, bytes});
    plan_.bytes_freed += bytes;
  }

  void drop_warm() {
    for (const ModelView* model : order_) {
      if (is_enough()) return;
      add(StepKind::drop_warm, *model, std::min(model->warm_bytes, shortage_ - plan_.bytes_freed));
    }
  }

  void drop_contexts() {
    for (const ModelView* model : order_) {
      if (is_enough()) return;
      if (may_lose_contexts(*model, options_)) add(StepKind::drop_contexts, *model, model->context_bytes);
    }
  }

  // Replaces the step that drops contexts by one that unloads the model.
  void unload() {
    for (const ModelView* model : order_) {
      if (is_enough()) return;
      if (!may_lose_contexts(*model, options_)) continue;
      const auto dropped = std::ranges::find_if(plan_.steps, [&](const EvictionStep& step) {
        return step.kind == StepKind::drop_contexts && step.model == model->name;
      });
      if (dropped != plan_.steps.end()) {
        plan_.bytes_freed -= dropped->bytes;
        plan_.steps.erase(dropped);
      }
      add(StepKind::unload, *model, model->weight_bytes + model->context_bytes);
    }
  }

  // Models to hold back, because only background requests use them, if that frees enough together with `freed` bytes; otherwise
  // none.
  [[nodiscard]] std::vector<std::string> holds(std::uint64_t freed) const {
    std::vector<std::string> names;
    if (options_.is_background) return names;
    for (const ModelView* model : order_) {
      const bool is_all_background = model->sequences_active > 0 && model->sequences_active == model->sequences_background;
      if (!is_all_background || model->requests_waiting > 0 || model->is_pinned || model->is_loading) continue;
      names.push_back(model->name);
      freed += model->weight_bytes + model->context_bytes;
      if (freed >= shortage_) return names;
    }
    return {};
  }

  // A later large step can make earlier small steps unnecessary.
  void leave_out_what_is_not_needed() {
    for (auto step = plan_.steps.begin(); step != plan_.steps.end();) {
      if (plan_.bytes_freed - step->bytes < shortage_) {
        ++step;
        continue;
      }
      plan_.bytes_freed -= step->bytes;
      step = plan_.steps.erase(step);
    }
  }

  const std::uint64_t shortage_;
  const EvictionOptions& options_;
  std::vector<const ModelView*> order_;  // Sorted by order of eviction.
  EvictionPlan plan_;
};

std::string_view words_of(StepKind kind) {
  switch (kind) {
    case StepKind::drop_warm:
      return "drop states of";
    case StepKind::drop_contexts:
      return "drop contexts of";
    case StepKind::unload:
      return "unload";
  }
  return "";
}

}  // namespace

EvictionPlan plan_evictions(std::uint64_t shortage, std::span<const ModelView> models, const EvictionOptions& options) {
  return Planner(shortage, models, options).plan();
}

std::uint64_t evictable_bytes(std::span<const ModelView> models, const EvictionOptions& options) {
  std::uint64_t bytes = 0;
  for (const ModelView& model : models) {
    if (may_lose_contexts(model, options)) bytes += model.weight_bytes + model.context_bytes;
  }
  return bytes;
}

std::string text_of(std::span<const EvictionStep> steps) {
  std::string text;
  for (const EvictionStep& step : steps) {
    text += std::format("{}{} {} ({})", text.empty() ? "" : ", ", words_of(step.kind), step.model, readable_bytes(step.bytes));
  }
  return text;
}

}  // namespace uma::pool
