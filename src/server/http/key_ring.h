// The API keys that are in effect, and their changes. The keys file, or the store that several daemons share, is the truth: a
// change reads it, edits it and puts what it then says into effect, so that nothing is lost that people or other daemons wrote
// there meanwhile. A shared store is also read again and again.
//
// Thread rule: any thread. Changes wait for the disk or the store and run one after another on a thread of their own
// ("uma-keys"). With a file it lives as long as there are some, with a shared store as long as the ring. Invariant: a daemon
// that needs keys at its start needs them until its end.
#pragma once

#include <cstddef>
#include <deque>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/key_store.h"
#include "core/work/promise.h"
#include "server/http/account.h"
#include "server/http/handlers/api_keys.h"

namespace uma::server {

// Why a change is refused although it could be made; `status` is of HTTP.
struct KeyRefusal {
  int status = 0;
  std::string message;
};
template <class T>
using KeyOutcome = std::expected<T, KeyRefusal>;

class KeyRing {
 public:
  struct Entry {
    ApiKey key;
    std::shared_ptr<Account> account;  // Shared with requests and generations, which may outlive the key.
  };
  using Entries = std::vector<Entry>;

  // `path` is the keys file; empty: the keys cannot be changed. `shared` has the keys in its place, and callers then always
  // need one; it outlives the ring, which uses it alone from now on, and reads it every `poll_every`. Null: no daemon shares
  // the keys.
  KeyRing(const std::vector<ApiKey>& keys, std::string path, KeyStore* shared = nullptr,
          Duration poll_every = std::chrono::milliseconds(500));
  ~KeyRing();
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  // Whether callers need a key.
  [[nodiscard]] bool are_needed() const { return are_needed_; }
  // A snapshot, in the order of the file.
  [[nodiscard]] std::shared_ptr<const Entries> entries() const;
  // Whether the account's key is still in effect, for the same tenant and with the same rights. True for an account without a
  // key.
  [[nodiscard]] bool is_in_effect(const Account& account) const;

  // Calls `wake` on any thread whenever other keys are in effect, until the result is destroyed. `wake` does not block.
  [[nodiscard]] std::shared_ptr<void> on_change(std::function<void()> wake);

  using AccountPtr = std::shared_ptr<const Account>;  // Shared, because a change may wait longer than its request.

  // Makes a key with these options (make_api_key) and writes its line into the file or the store. It is in effect when the
  // reply comes. `caller` is the account of the request; null, or without a key: nothing is known of it. Refusals: 400 without
  // a file, 401 if the caller's key is no administrator's any more, 409 if the name exists or there are too many keys. Errors:
  // E_PROTO_003, E_IO_001, E_IO_002, E_LIMIT_003.
  void add(ApiKey wanted, AccountPtr caller, Promise<KeyOutcome<NewKey>> reply);
  // Takes the key's line out of the file or the store. From then on the key is refused; answers in progress go on. Refusals:
  // 400 without a file, 401 as above, 404 for an unknown name, 409 for the caller's key, the only administrator's and the last
  // one. Errors: E_IO_001, E_IO_002, E_LIMIT_003.
  void remove(std::string name, AccountPtr caller, Promise<KeyOutcome<Unit>> reply);

 private:
  template <class T>
  void change(Promise<KeyOutcome<T>> reply, MoveOnlyFunction<Expected<KeyOutcome<T>>()> work);
  void run_changes();
  void poll();
  [[nodiscard]] Expected<Unit> edit_text(const TextEdit& edit, bool* is_written);
  [[nodiscard]] std::optional<MoveOnlyFunction<void()>> next_change();
  template <class T, class Edit>
  [[nodiscard]] Expected<KeyOutcome<T>> edit_keys(const Account* caller, const Edit& edit);
  [[nodiscard]] Expected<KeyOutcome<NewKey>> add_now(const ApiKey& wanted, const Account* caller);
  [[nodiscard]] Expected<KeyOutcome<Unit>> remove_now(const std::string& name, const Account* caller);
  // Puts these keys into effect. Keys that have not changed keep their accounts, and with them what is left of their limits.
  void apply(const std::vector<ApiKey>& keys);

  const std::string path_;
  KeyStore* const shared_;  // Null: the file has the keys. Used by the thread.
  const std::string name_;  // Name of the file or the store, for messages.
  const bool are_needed_;
  const Duration poll_every_;

  // Owned by the thread.
  TimePoint next_poll_{};
  bool is_failing_ = false;

  mutable Mutex mutex_;
  CondVar changed_;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<std::function<void()>>> wakes_ GUARDED_BY(mutex_);
  std::shared_ptr<const Entries> entries_ GUARDED_BY(mutex_);
  std::deque<MoveOnlyFunction<void()>> changes_ GUARDED_BY(mutex_);
  bool is_running_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);  // If it does not run, it has ended or ends now.
};

}  // namespace uma::server
