// The API keys that are in effect, and their changes. The keys file is the truth: a change reads it, edits it and puts what it
// then says into effect, so that nothing is lost that people wrote there meanwhile.
//
// Thread rule: any thread. Changes wait for the disk and run one after another on a thread of their own ("uma-keys"), which
// lives as long as there are some. Invariant: a daemon that needs keys at its start needs them until its end.
#pragma once

#include <cstddef>
#include <deque>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/reply.h"
#include "server/http/account.h"
#include "server/http/api_keys.h"

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

  // `path` is the keys file; empty: the keys cannot be changed.
  KeyRing(const std::vector<ApiKey>& keys, std::string path);
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

  using AccountPtr = std::shared_ptr<const Account>;  // Shared, because a change may wait longer than its request.

  // Makes a key with these options (make_api_key) and writes its line into the file. It is in effect when the reply comes.
  // `caller` is the account of the request; null, or without a key: nothing is known of it. Refusals: 400 without a file, 401
  // if the caller's key is no administrator's any more, 409 if the name exists or there are too many keys. Errors: E_PROTO_003,
  // E_IO_001, E_LIMIT_003.
  void add(ApiKey wanted, AccountPtr caller, Reply<KeyOutcome<NewKey>> reply);
  // Takes the key's line out of the file. From then on the key is refused; answers in progress go on. Refusals: 400 without a
  // file, 401 as above, 404 for an unknown name, 409 for the caller's key, the only administrator's and the last one. Errors:
  // E_IO_001, E_LIMIT_003.
  void remove(std::string name, AccountPtr caller, Reply<KeyOutcome<Unit>> reply);

 private:
  template <class T>
  void change(Reply<KeyOutcome<T>> reply, MoveOnlyFunction<Expected<KeyOutcome<T>>()> work);
  void run_changes();
  [[nodiscard]] std::optional<MoveOnlyFunction<void()>> next_change();
  template <class T, class Edit>
  [[nodiscard]] Expected<KeyOutcome<T>> edit_keys(const Account* caller, const Edit& edit);
  [[nodiscard]] Expected<KeyOutcome<NewKey>> add_now(const ApiKey& wanted, const Account* caller);
  [[nodiscard]] Expected<KeyOutcome<Unit>> remove_now(const std::string& name, const Account* caller);
  // Puts these keys into effect. Keys that have not changed keep their accounts, and with them what is left of their limits.
  void apply(const std::vector<ApiKey>& keys);

  const std::string path_;
  const bool are_needed_;

  mutable Mutex mutex_;
  std::shared_ptr<const Entries> entries_ GUARDED_BY(mutex_);
  std::deque<MoveOnlyFunction<void()>> changes_ GUARDED_BY(mutex_);
  bool is_running_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);  // If it does not run, it has ended or ends now.
};

}  // namespace uma::server
