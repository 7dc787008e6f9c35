// A shared store in memory for tests and the simulator. Several objects may have the same content, as daemons do. Every call
// can be made to fail.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/disk/state_file.h"
#include "kv/shared/shared_store.h"

namespace uma::testing {

class FakeSharedStore final : public kv::SharedStore {
 public:
  struct State {
    kv::ColdHead head;
    kv::Snapshot snapshot;
  };
  struct Content {
    std::map<std::string, State> states;  // By name.
    std::function<bool()> fails;
    std::size_t calls = 0;
    // A call consists of so many parts. Before each it asks whether it is late.
    std::size_t parts = 1;
    std::function<void()> on_part;
  };

  explicit FakeSharedStore(std::shared_ptr<Content> content) : content_(std::move(content)) {}

  Expected<kv::ColdHead> write(const kv::StateOwner& owner, const kv::Snapshot& snapshot) override {
    if (!begin()) return fault();
    std::erase_if(content_->states, [&](const auto& each) {
      const kv::ColdHead& head = each.second.head;
      return head.owner.session == owner.session && head.identity == snapshot.identity;
    });
    kv::ColdHead head{.name = kv::state_name(owner, snapshot.identity, snapshot.tokens),
                      .owner = owner,
                      .identity = snapshot.identity,
                      .tokens = snapshot.tokens,
                      .bytes = snapshot.bytes(),
                      .last_used_s = 0};
    content_->states.insert_or_assign(head.name, State{.head = head, .snapshot = copy_of(snapshot)});
    return head;
  }
  Expected<std::vector<kv::ColdHead>> find(const TenantId& tenant, const SessionId& session,
                                           std::span<const std::string> identities) override {
    if (!begin()) return fault();
    std::vector<kv::ColdHead> heads;
    for (const auto& [name, state] : content_->states) {
      const bool is_of_session = state.head.owner.tenant == tenant && state.head.owner.session == session;
      if (is_of_session && std::ranges::find(identities, state.head.identity) != identities.end()) heads.push_back(state.head);
    }
    return heads;
  }
  Expected<std::optional<kv::Snapshot>> read(const std::string& name, const kv::StateOwner&, std::uint64_t,
                                             kv::BytePool&) override {
    if (!begin()) return fault();
    const auto found = content_->states.find(name);
    if (found == content_->states.end()) return std::nullopt;
    return copy_of(found->second.snapshot);
  }
  Expected<Unit> remove(const TenantId& tenant, const SessionId& session) override {
    if (!begin()) return fault();
    std::erase_if(content_->states, [&](const auto& each) {
      return each.second.head.owner.tenant == tenant && each.second.head.owner.session == session;
    });
    return Unit{};
  }
  Expected<std::size_t> clean() override {
    if (!begin()) return fault();
    return 0;
  }
  std::string text() const override { return "the fake store"; }

 private:
  static kv::Snapshot copy_of(const kv::Snapshot& snapshot) {
    return {.identity = snapshot.identity, .tokens = snapshot.tokens, .room = {}, .pieces = snapshot.pieces};
  }
  bool begin() {
    ++content_->calls;
    for (std::size_t i = 0; i < content_->parts; ++i) {
      if (is_late()) return false;
      if (content_->on_part) content_->on_part();
    }
    return !content_->fails || !content_->fails();
  }
  static std::unexpected<Error> fault() { return fail(ErrorCode::io_failed, "a fault of the test"); }

  const std::shared_ptr<Content> content_;
};

}  // namespace uma::testing
