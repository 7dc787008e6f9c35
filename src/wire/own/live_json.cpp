#include "wire/own/live_json.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "json/json_writer.h"
#include "wire/own/event_codec.h"
#include "wire/own/monitoring.h"

namespace uma::wire {
namespace {

constexpr std::size_t kModelsMax = 256;
constexpr std::size_t kDecisionsMax = 8;
constexpr std::string_view kDecode = "decode";

// A kind of spans, as people who watch see it.
struct CallName {
  std::string_view span;
  std::string_view kind;
  std::string_view moved{};  // For a move: where its bytes are counted.
};
constexpr std::array<CallName, 9> kCallNames = {{
    {kDecode, "decode"},
    {"prefill", "prefill"},
    {"prefill image", "prefill"},
    {"embed", "embed"},
    {"draw", "draw"},
    {"save", "move", "hot_warm_bytes"},
    {"write state", "move", "warm_cold_bytes"},
    {"read state", "move", "cold_warm_bytes"},
    {"restore", "move", "warm_hot_bytes"},
}};

const CallName* name_of(const TraceKind& kind) {
  const auto found = std::ranges::find(kCallNames, kind.name, &CallName::span);
  return found == kCallNames.end() ? nullptr : found;
}

std::string_view name_of(SlotState state) {
  switch (state) {
    case SlotState::idle:
      return "idle";
    case SlotState::restore:
      return "restore";
    case SlotState::prefill:
      return "prefill";
    case SlotState::decode:
      break;
  }
  return "decode";
}

std::string_view name_of(WaitStage stage) {
  switch (stage) {
    case WaitStage::loading:
      return "loading";
    case WaitStage::preparing:
      return "preparing";
    case WaitStage::swapped:
      return "swapped";
    case WaitStage::queued:
      break;
  }
  return "queued";
}

void field(json::ObjectWriter& object, std::string_view name, double value, int decimals) {
  json::append_number(object.begin(name), value, decimals);
}
void field_or_null(json::ObjectWriter& object, std::string_view name, std::optional<double> value, int decimals) {
  if (value) return field(object, name, *value, decimals);
  object.null_field(name);
}

class SnapshotWriter {
 public:
  SnapshotWriter(const LiveState& state, const LiveAudience& audience)
      : state_(state), metrics_(state.metrics), audience_(audience) {}

  std::string head() const {
    std::string out;
    json::ObjectWriter object(out);
    field(object, "unix_ms", state_.moment.unix_ms, 1);
    field(object, "uptime_s", metrics_.uptime_s, 1);
    object.field("rss_bytes", metrics_.rss_bytes);
    field_or_null(object, "oldest_waiting_s", metrics_.progress.oldest_waiting_s, 1);
    return out;  // Not closed.
  }

  std::string body() const {
    std::string out;
    json::ObjectWriter object(out, "");
    const ModelState model = state_.models.empty() ? ModelState::loading : state_.models.front().state;
    object.field("status", is_healthy(metrics_, model) ? "ok" : "degraded");
    object.field("threads", metrics_.threads);
    object.field("crashes_total", metrics_.crashes.count);
    object.field("requests_open", metrics_.requests_open);
    field(object, "contract_ms", state_.activity.contract_ms, 1);
    write_totals(object);
    write_latency(object);
    write_workers(object);
    write_queue(object);
    write_tiers(object);
    write_moves(object);
    write_memory(object);
    write_models(object);
    write_devices(object);
    write_tenants(object);
    return out;  // Neither opened nor closed.
  }

 private:
  void write_totals(json::ObjectWriter& snapshot) const {
    json::ObjectWriter totals(snapshot.begin("totals"));
    totals.field("requests", metrics_.requests_total);
    totals.field("requests_failed", metrics_.requests_failed_total);
    totals.field("tokens", metrics_.tokens_total);
    totals.field("prompt_tokens", metrics_.prompt_tokens_total);
    totals.field("reused_tokens", metrics_.reused_tokens_total);
    totals.field("promises_kept", metrics_.promises_kept_total);
    totals.field("promises_broken", metrics_.promises_broken_total);
    totals.close();
  }

  void write_latency(json::ObjectWriter& snapshot) const {
    json::ObjectWriter latency(snapshot.begin("latency"));
    field(latency, "p50_ms", metrics_.p50_ms, 2);
    field(latency, "p95_ms", metrics_.p95_ms, 2);
    field(latency, "p99_ms", metrics_.p99_ms, 2);
    field(latency, "ttft_p50_ms", metrics_.ttft_p50_ms, 2);
    field(latency, "ttft_p95_ms", metrics_.ttft_p95_ms, 2);
    latency.close();
  }

  // The workers that are loaded; `worker` is their number in the metrics.
  void write_workers(json::ObjectWriter& snapshot) const {
    std::string& out = snapshot.begin("workers");
    auto activity = state_.activity.workers.begin();
    bool is_first = true;
    out += '[';
    for (std::size_t i = 0; i < metrics_.workers.size(); ++i) {
      const WorkerMetrics& worker = metrics_.workers[i];
      if (worker.cells_total == 0) continue;
      // The two lists were made one after the other: a worker that came or went in between is in one of them only.
      const auto found = std::ranges::find(activity, state_.activity.workers.end(), worker.model, &WorkerActivity::model);
      if (!std::exchange(is_first, false)) out += ',';
      write_worker(out, i, worker, found == state_.activity.workers.end() ? nullptr : &*found);
      if (found != state_.activity.workers.end()) activity = std::next(found);
    }
    out += ']';
  }

  void write_worker(std::string& out, std::size_t number, const WorkerMetrics& metrics, const WorkerActivity* activity) const {
    json::ObjectWriter worker(out);
    worker.field("worker", number);
    worker.field("model", metrics.model);
    worker.field("sequences_active", metrics.sequences_active);
    worker.field("queue_depth", metrics.queue_depth);
    worker.field("cells_used", metrics.cells_used);
    worker.field("cells_total", metrics.cells_total);
    if (activity != nullptr) {
      json::append_array(worker.begin("slots"), activity->slots, [&](const SlotActivity& slot) { write_slot(out, slot); });
    }
    worker.close();
  }

  void write_slot(std::string& out, const SlotActivity& activity) const {
    json::ObjectWriter slot(out);
    slot.field("slot", activity.slot);
    slot.field("state", name_of(activity.state));
    if (activity.state == SlotState::idle) {
      slot.null_field("request");
      slot.null_field("tenant");
    } else {
      write_owner(slot, activity.request, activity.tenant, activity.agent);
    }
    slot.field("tokens", activity.tokens);
    slot.field("prompt_tokens", activity.prompt_tokens);
    slot.close();
  }

  void write_owner(json::ObjectWriter& object, RequestId request, const std::string& tenant, const Agent& agent) const {
    if (may_see(tenant)) {
      object.field("request", std::to_string(request.value));
      object.field("tenant", tenant);
      if (agent.is_known()) {
        append_agent(object.begin("agent"),
                     {.program = agent.program, .id = Agent::shown(agent.id), .parent = Agent::shown(agent.parent)});
      }
    } else {
      object.null_field("request");
      object.field("tenant", kOtherTenants);
    }
  }
  [[nodiscard]] bool may_see(const std::string& tenant) const {
    return audience_.is_administrator || tenant == audience_.tenant;
  }

  // First those that wait for a slot, in the order of their positions; behind them those that are not that far.
  void write_queue(json::ObjectWriter& snapshot) const {
    struct Place {
      std::int64_t position;
      const WaitingRequest* request;
    };
    std::vector<Place> places;
    std::map<std::string_view, std::int64_t> lengths;  // Length of each model's longest queue.
    for (const WorkerActivity& worker : state_.activity.workers) {
      std::int64_t position = 0;
      for (const WaitingRequest& request : worker.waiting) places.push_back({++position, &request});
      std::int64_t& length = lengths[worker.model];
      length = std::max(length, position);
    }
    std::ranges::stable_sort(places, {}, &Place::position);
    for (const WaitingRequest& request : state_.activity.waiting) places.push_back({++lengths[request.model], &request});
    if (places.size() > kWaitingShownMax) places.resize(kWaitingShownMax);
    std::string& out = snapshot.begin("queue");
    json::append_array(out, places, [&](const Place& place) { write_waiting(out, place.position, *place.request); });
    snapshot.field("queue_depth", metrics_.queue_depth + metrics_.embed_queue_depth + metrics_.picture_queue_depth +
                                      state_.activity.waiting_count);
  }

  void write_waiting(std::string& out, std::int64_t position, const WaitingRequest& request) const {
    json::ObjectWriter waiting(out);
    waiting.field("position", position);
    write_owner(waiting, request.request, request.tenant, request.agent);
    waiting.field("model", request.model);
    waiting.field("class", request.is_background ? "background" : "interactive");
    waiting.field("stage", name_of(request.stage));
    field(waiting, "waited_ms", std::max(0.0, to_ms(state_.moment.at - request.since)), 0);
    waiting.close();
  }

  void write_tiers(json::ObjectWriter& snapshot) const {
    json::ObjectWriter tiers(snapshot.begin("tiers"));
    const auto write = [&](std::string_view name, std::int64_t states, std::int64_t bytes, std::uint64_t hits) {
      json::ObjectWriter tier(tiers.begin(name));
      tier.field("states", states);
      tier.field("bytes", bytes);
      tier.field("hits_total", hits);
      tier.close();
    };
    write("hot", metrics_.hot_sessions, metrics_.hot_bytes, metrics_.hot_hits_total);
    write("warm", metrics_.warm_sessions, metrics_.warm_bytes, metrics_.warm_hits_total);
    write("cold", metrics_.cold_sessions, metrics_.cold_bytes, metrics_.cold_hits_total);
    tiers.close();
  }

  void write_moves(json::ObjectWriter& snapshot) const {
    json::ObjectWriter moves(snapshot.begin("moves"));
    moves.field("hot_warm_bytes", metrics_.saved_bytes_total);
    moves.field("warm_cold_bytes", metrics_.cold_written_bytes_total);
    moves.field("cold_warm_bytes", metrics_.cold_read_bytes_total);
    moves.field("warm_hot_bytes", metrics_.restored_bytes_total);
    moves.close();
  }

  void write_memory(json::ObjectWriter& snapshot) const {
    json::ObjectWriter memory(snapshot.begin("memory"));
    memory.field("usable_bytes", metrics_.memory_usable_bytes);
    memory.field("reserved_bytes", metrics_.memory_reserved_bytes);
    const std::span<const std::string> decisions = metrics_.memory_decisions;
    std::string& out = memory.begin("decisions");
    json::append_array(out, decisions.last(std::min(decisions.size(), kDecisionsMax)),
                       [&](const std::string& decision) { json::append_string(out, decision); });
    memory.close();
  }

  // The models, those in memory first.
  void write_models(json::ObjectWriter& snapshot) const {
    std::vector<const ModelInfo*> models;
    for (const ModelInfo& model : state_.models) models.push_back(&model);
    std::ranges::stable_partition(models, [](const ModelInfo* model) {
      return model->state == ModelState::ready || model->state == ModelState::loading;
    });
    if (models.size() > kModelsMax) models.resize(kModelsMax);
    std::string& out = snapshot.begin("models");
    json::append_array(out, models, [&](const ModelInfo* info) {
      json::ObjectWriter model(out);
      model.field("name", info->name);
      model.field("state", model_state_name(info->state));
      field(model, "load_progress", info->load_progress, 2);
      model.field("bytes", info->bytes);
      const auto uses = state_.activity.model_uses.find(info->name);
      model.field("in_use", uses == state_.activity.model_uses.end() ? 0 : uses->second);
      model.close();
    });
  }

  void write_devices(json::ObjectWriter& snapshot) const {
    std::string& out = snapshot.begin("devices");
    json::append_array(out, metrics_.devices, [&](const DeviceMetrics& metrics) {
      json::ObjectWriter device(out);
      device.field("name", metrics.name);
      device.field("memory_usable_bytes", metrics.memory_usable_bytes);
      device.field("memory_reserved_bytes", metrics.memory_reserved_bytes);
      device.field("weights_bytes", metrics.weights_bytes);
      device.field("context_bytes", metrics.context_bytes);
      field(device, "busy_ratio", metrics.busy_ratio, 2);
      device.close();
    });
  }

  void write_tenants(json::ObjectWriter& snapshot) const {
    double work = 0;
    std::vector<std::pair<std::string_view, TenantActivity>> active;
    for (const auto& [tenant, activity] : state_.activity.tenants) {
      const double counted = activity.work >= 1 ? activity.work : 0;  // The rest of what is long ago.
      work += counted;
      if (counted == 0 && activity.sequences_active == 0 && activity.queue_depth == 0) continue;
      active.emplace_back(
          tenant,
          TenantActivity{.work = counted, .sequences_active = activity.sequences_active, .queue_depth = activity.queue_depth});
    }
    // The audience's own tenant is shown in any case, and then those that use the daemon the most.
    std::ranges::stable_sort(active, std::greater(), [&](const auto& entry) {
      return std::tuple(entry.first == audience_.tenant, entry.second.work, entry.second.sequences_active);
    });
    TenantActivities shown;
    for (const auto& [tenant, activity] : active) {
      const std::string name(tenant);
      add_activity(shown, may_see(name) ? name : kOtherTenants, activity, kTenantsShownMax);
    }
    std::string& out = snapshot.begin("tenants");
    json::append_array(out, shown, [&](const auto& entry) {
      json::ObjectWriter tenant(out);
      tenant.field("tenant", entry.first);
      field(tenant, "share", work > 0 ? entry.second.work / work : 0, 2);
      tenant.field("sequences_active", entry.second.sequences_active);
      tenant.field("queue_depth", entry.second.queue_depth);
      tenant.close();
    });
  }

  const LiveState& state_;
  const MetricsSnapshot& metrics_;
  const LiveAudience& audience_;
};

void append_call(std::string& out, const LiveCall& call, const LiveMoment& now) {
  const TraceSpan& span = call.span;
  const CallName& name = *name_of(*span.kind);
  json::ObjectWriter object(out);
  object.field("lane", call.lane);
  if (!call.model.empty()) object.field("model", call.model);
  object.field("kind", name.kind);
  field(object, "began_ms", now.unix_ms_of(span.began), 1);
  field(object, "ms", to_ms(span.ended - span.began), 2);
  object.field("rows", name.moved.empty() ? span.numbers[0] : 0);
  field_or_null(object, "pause_ms", pause_ms_of(span), 1);
  if (!name.moved.empty()) {
    object.field("bytes", span.numbers[0]);
    object.field("moved", name.moved);
  }
  object.close();
}

}  // namespace

bool is_live_call(const TraceKind& kind) {
  return name_of(kind) != nullptr;
}

std::optional<double> pause_ms_of(const TraceSpan& span) {
  constexpr std::size_t kPause = 3;
  if (span.kind->name != kDecode || span.kind->numbers[kPause] != "pause_us" || span.numbers[kPause] == 0) return std::nullopt;
  return static_cast<double>(span.numbers[kPause]) / 1000;
}

LiveText live_text(const LiveState& state, const LiveAudience& audience) {
  const SnapshotWriter writer(state, audience);
  return {.head = writer.head(), .body = writer.body()};
}

std::size_t keep_longest_calls(std::vector<LiveCall>& calls) {
  if (calls.size() <= kLiveCallsMax) return 0;
  const auto end = calls.begin() + kLiveCallsMax;
  std::ranges::nth_element(calls, end, std::greater(), [](const LiveCall& call) { return call.span.ended - call.span.began; });
  const std::size_t left_out = calls.size() - kLiveCallsMax;
  calls.erase(end, calls.end());
  return left_out;
}

std::string live_calls_text(std::vector<LiveCall>& calls, std::size_t& left_out, const LiveMoment& now) {
  left_out += keep_longest_calls(calls);
  std::ranges::sort(calls, {}, [](const LiveCall& call) { return call.span.began; });
  std::string out;
  json::ObjectWriter object(out, "");
  json::append_array(object.begin("calls"), calls, [&](const LiveCall& call) { append_call(out, call, now); });
  object.field("calls_left_out", left_out);
  return out;
}

void append_snapshot(std::string& out, const LiveText& text, std::string_view calls) {
  out.append(text.head);
  out.append(text.body);
  out.append(calls);
  out.push_back('}');
}

std::string history_json(std::span<const LivePoint> points) {
  std::string out =
      R"({"names":["tokens_per_s","prompt_per_s","reused_per_s","streams","queue","pause_ms","reserved_bytes","hot_bytes",)"
      R"("warm_bytes","cold_bytes"],"points":)";
  json::append_array(out, points, [&](const LivePoint& point) {
    const auto append = [&](std::optional<double> value) {
      out += ',';
      if (value) return json::append_number(out, *value, 1);
      out += "null";
    };
    out += '[';
    json::append_number(out, point.unix_ms, 0);
    for (const std::optional<double> rate : {point.tokens_per_s, point.prompt_per_s, point.reused_per_s}) append(rate);
    append(static_cast<double>(point.streams));
    append(static_cast<double>(point.queue));
    append(point.pause_ms);
    for (const std::int64_t bytes : {point.reserved_bytes, point.hot_bytes, point.warm_bytes, point.cold_bytes})
      append(static_cast<double>(bytes));
    out += ']';
  });
  out += '}';
  return out;
}

}  // namespace uma::wire
