// A router on its bench, with sessions of an earlier daemon and requests of one user.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace uma::engine {

inline constexpr FakeOptions kRouterOptions{.cells = 1024, .sequences = 4};

class RouterTest : public ::testing::Test, protected EngineBench {
 protected:
  RouterTest() : EngineBench(kRouterOptions) {}

  kv::SessionRecord& left_behind(const std::string& id) {
    kv::SessionRecord& record = records_[id];
    record.id.value = id;
    record.tenant = kTenant;
    record.model = "fake";
    record.mode = SessionMode::text;
    record.last_used_s = clock_.unix_s();
    return record;
  }
  // Starts the daemon again with the records of left_behind() in the catalog.
  void start(std::uint64_t seed = 1) {
    for (const auto& [id, record] : records_) keep(record);
    records_.clear();
    start_router({.limits = limits_, .seed = seed, .record_bytes_max = record_bytes_max_});
  }

  // Takes no step.
  std::vector<SessionInfo> list() { return begin(sessions().list(kTenant, {}))->value()->sessions; }
  Expected<SessionDetail> get(const std::string& session) { return wait_for(sessions().get(kTenant, session)); }
  Expected<SessionInfo> create_text(const TenantId& tenant, const std::string& name = "", const std::string& system = "") {
    CreateSessionRequest request;
    request.name = name;
    request.system = system;
    request.mode = SessionMode::text;
    return create(request, tenant);
  }
  static GenerateRequest request(const std::string& session, std::optional<std::int32_t> max_tokens = 5) {
    GenerateRequest made;
    made.session = session;
    made.options.max_tokens = max_tokens;
    return made;
  }
  static GenerateRequest one_shot(std::string prompt, std::optional<std::int32_t> max_tokens = 5) {
    GenerateRequest made = request("", max_tokens);
    made.input.text = std::move(prompt);
    return made;
  }
  using EngineBench::generate;
  SinkPtr generate(const std::string& session, std::int32_t max_tokens = 5, bool regenerate = false) {
    GenerateRequest made = request(session, max_tokens);
    made.regenerate = regenerate;
    return generate(std::move(made));
  }
  // A one-shot request if `session` is empty.
  SinkPtr generate_as(const std::string& grammar, const std::string& session = "", bool ignore_eos = false) {
    GenerateRequest made = request(session, 40);
    made.input.text = "say";
    made.options.grammar = grammar;
    made.options.sampling.ignore_eos = ignore_eos;
    return generate(std::move(made));
  }
  // Begins a reply and runs it until its first token, for 20 steps at most.
  SinkPtr begin_long_reply(const std::string& session) {
    const SinkPtr sink = begin(request(session, 500));
    router_->step();
    for (int i = 0; i < 20 && sink->tokens.empty(); ++i) lane().step();
    return sink;
  }

  Limits limits_;
  kv::MemoryCatalog& disk_ = catalog_.kept;
  std::size_t record_bytes_max_ = RouterOptions().record_bytes_max;
  std::map<std::string, kv::SessionRecord> records_;
};

}  // namespace uma::engine
