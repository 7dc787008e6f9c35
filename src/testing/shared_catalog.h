// A catalog that several daemons share, in memory, for tests of one thread. Replies come at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <format>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "base/move_only_function.h"
#include "kv/catalog/catalog.h"

namespace uma::testing {

// What the daemons share.
struct SharedSessions {
  struct Entry {
    kv::RecordPtr record;
    int owner = 0;  // 0: nobody.
    std::int64_t fence = 0;
    bool is_wanted = false;
    int wanted_by = 0;
    int kept_for = 0;          // The node that asked for it gets it next, if it asks again; 0: nobody.
    std::int64_t changed = 0;  // Number of the last change.
  };
  std::map<SessionId, Entry> entries;
  std::vector<std::pair<std::int64_t, SessionId>> ended;
  std::int64_t changes_count = 0;
};

class SharedCatalog final : public kv::Catalog {
 public:
  // `node` is above 0.
  SharedCatalog(SharedSessions& shared, int node) : shared_(shared), node_(node) {}

  [[nodiscard]] std::vector<kv::SessionSummary> load() override { return ask().changed; }
  [[nodiscard]] bool is_shared() const override { return true; }
  [[nodiscard]] std::uint64_t lease() const override { return has_lease ? lease_number : 0; }
  // Others may take the sessions of the node from now on.
  void end_lease() {
    has_lease = false;
    for (auto& [id, entry] : shared_.entries) {
      if (entry.owner == node_) entry.owner = 0;
    }
  }
  void commit(kv::RecordPtr record, kv::RecordPtr before, Done done) override {
    if (holds_commits) {
      held_commits_.push_back([this, record = std::move(record), before = std::move(before), done = std::move(done)]() mutable {
        commit(std::move(record), std::move(before), std::move(done));
      });
      return;
    }
    if (is_cut_off) return done(lost());
    const SessionId id = record->id;
    for (const auto& [other, entry] : shared_.entries) {
      const bool is_taken =
          other != id && !record->name.empty() && entry.record->name == record->name && entry.record->tenant == record->tenant;
      if (is_taken) return done(fail(ErrorCode::io_failed, "the name is taken"));
    }
    if (before == nullptr) {
      shared_.entries[id] = {.record = std::move(record), .owner = node_, .fence = 1, .changed = ++shared_.changes_count};
      fences_[id] = 1;
      return done(Unit{});
    }
    SharedSessions::Entry* const own = own_entry(id);
    if (own == nullptr) return done(fenced(id));
    own->record = std::move(record);
    fences_[id] = ++own->fence;
    own->changed = ++shared_.changes_count;
    done(Unit{});
  }
  void remove(const SessionId& id, Done done) override {
    if (is_cut_off) return done(lost());
    if (own_entry(id) == nullptr) return done(fenced(id));
    shared_.entries.erase(id);
    shared_.ended.emplace_back(++shared_.changes_count, id);
    done(Unit{});
  }
  void read(const SessionId& id, OnRead on_read) override {
    const auto found = shared_.entries.find(id);
    if (found == shared_.entries.end()) return on_read(fail(ErrorCode::io_failed, "it is gone"));
    on_read(found->second.record);
  }
  void look_up(const TenantId& tenant, const std::string& session, OnFound on_found) override {
    if (is_cut_off) return on_found(fail(ErrorCode::io_failed, "the database cannot be reached"));
    const kv::SessionRecord* found = nullptr;
    for (const auto& [id, entry] : shared_.entries) {
      if (entry.record->tenant != tenant) continue;
      if (entry.record->name == session || (found == nullptr && id.value == session)) found = entry.record.get();
    }
    if (found == nullptr) return on_found(fail(ErrorCode::session_unknown, "there is no such session"));
    on_found(kv::summary_of(*found));
  }
  void take(const SessionId& id, OnRead on_read) override {
    ++takings;
    if (is_cut_off) return on_read(fail(ErrorCode::io_failed, "the database cannot be reached"));
    const auto found = shared_.entries.find(id);
    if (found == shared_.entries.end()) return on_read(fail(ErrorCode::session_unknown, "there is no such session"));
    SharedSessions::Entry& entry = found->second;
    if (entry.kept_for != 0 && entry.kept_for != node_) {
      entry.kept_for = 0;  // Time would end it, too.
      return on_read(fail(ErrorCode::session_busy, "it is kept for another node"));
    }
    if (entry.owner != 0 && entry.owner != node_) {
      if (!std::exchange(entry.is_wanted, true)) entry.wanted_by = node_;
      return on_read(fail(ErrorCode::session_busy, std::format("it is in use on node {}", entry.owner)));
    }
    entry.owner = node_;
    entry.is_wanted = false;
    entry.kept_for = 0;
    entry.changed = ++shared_.changes_count;
    fences_[id] = ++entry.fence;
    on_read(entry.record);
  }
  void give_up(const SessionId& id) override {
    fences_.erase(id);
    const auto found = shared_.entries.find(id);
    if (found == shared_.entries.end() || found->second.owner != node_ || is_cut_off) return;
    found->second.owner = 0;
    found->second.kept_for = std::exchange(found->second.is_wanted, false) ? found->second.wanted_by : 0;
  }
  void changes(OnChanges on_changes) override {
    if (is_cut_off) return on_changes(fail(ErrorCode::io_failed, "the database cannot be reached"));
    if (!std::exchange(has_lease, true)) ++lease_number;
    if (std::exchange(is_reconnected, false)) {
      seen_ = 0;
      page_end_.reset();
    }
    on_changes(ask());
  }

  // The commits that were held are done now.
  void release_commits() {
    holds_commits = false;
    for (auto& commit_now : std::exchange(held_commits_, {})) commit_now();
  }

  bool is_cut_off = false;                                            // From the database.
  bool holds_commits = false;                                         // They wait for release_commits().
  bool is_reconnected = false;                                        // The next changes() answers with everything.
  std::size_t changes_max = std::numeric_limits<std::size_t>::max();  // Limit of sessions in one answer to changes().
  bool has_lease = true;
  std::uint64_t lease_number = 1;
  int takings = 0;

 private:
  [[nodiscard]] SharedSessions::Entry* own_entry(const SessionId& id) {
    const auto found = shared_.entries.find(id);
    const auto fence = fences_.find(id);
    const bool is_own = found != shared_.entries.end() && fence != fences_.end() && found->second.owner == node_ &&
                        found->second.fence == fence->second;
    return is_own ? &found->second : nullptr;
  }
  std::unexpected<Error> fenced(const SessionId& id) {
    fences_.erase(id);
    return fail(ErrorCode::limit_wait, "another node has taken the session");
  }
  static std::unexpected<Error> lost() { return fail(ErrorCode::outcome_unknown, "the connection was lost"); }
  kv::CatalogChanges ask() {
    kv::CatalogChanges changes;
    for (const auto& [id, entry] : shared_.entries) {
      if (entry.owner == node_ && entry.is_wanted) changes.wanted.push_back(id);
      const bool is_in_page = entry.changed > seen_ && (!page_end_ || *page_end_ < id);
      if (!is_in_page || own_entry(id) != nullptr) continue;
      if (changes.changed.size() == changes_max) {
        page_end_ = changes.changed.back().id;
        changes.has_more = true;
        return changes;
      }
      changes.changed.push_back(kv::summary_of(*entry.record));
    }
    page_end_.reset();
    changes.is_complete = seen_ == 0;
    if (changes.is_complete) std::ranges::copy(std::views::keys(shared_.entries), std::back_inserter(changes.all));
    for (const auto& [number, id] : shared_.ended) {
      if (number > seen_) changes.ended.push_back(id);
    }
    seen_ = shared_.changes_count;
    return changes;
  }

  SharedSessions& shared_;
  const int node_;
  std::map<SessionId, std::int64_t> fences_;
  std::vector<MoveOnlyFunction<void()>> held_commits_;
  std::int64_t seen_ = 0;
  std::optional<SessionId> page_end_;  // The last session of the answer before, if there is more.
};

}  // namespace uma::testing
