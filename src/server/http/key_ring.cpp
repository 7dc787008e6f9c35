#include "server/http/key_ring.h"

#include <algorithm>
#include <chrono>
#include <format>
#include <utility>

#include "base/log.h"
#include "base/system/thread_name.h"
#include "base/thrown.h"
#include "core/file/edit_file.h"

namespace uma::server {
namespace {

constexpr std::size_t kKeysMax = 10'000;  // A request is compared with every key.
constexpr std::size_t kChangesMax = 16;
constexpr EditRules kKeysFile{.makes_missing = false};

// The keys of the file's text. Errors: E_IO_001, because the mistake is not the request's.
Expected<std::vector<ApiKey>> keys_in(const std::string& name, const std::string& text) {
  auto keys = parse_api_keys(text);
  if (keys) return keys;
  return fail(ErrorCode::io_failed, std::format("{}: {}: correct it by hand", name, keys.error().message));
}

const ApiKey* find_key(const std::vector<ApiKey>& keys, const std::string& name) {
  const auto found = std::ranges::find(keys, name, &ApiKey::name);
  return found == keys.end() ? nullptr : &*found;
}

std::unexpected<KeyRefusal> refuse(int status, std::string message) {
  return std::unexpected(KeyRefusal{status, std::move(message)});
}

// Whether the caller's key may no longer change keys, by what the file says now. A key may be deleted while its request waits.
bool has_lost_rights(const std::vector<ApiKey>& keys, const Account* caller) {
  if (caller == nullptr || !caller->digest()) return false;
  return std::ranges::none_of(keys, [&](const ApiKey& key) { return key.is_admin && key.digest == *caller->digest(); });
}

// Ends an edit that is refused.
std::unexpected<Error> leave_file() {
  return fail(ErrorCode::proto_field, "");
}

}  // namespace

KeyRing::KeyRing(const std::vector<ApiKey>& keys, std::string path, KeyStore* shared, Duration poll_every)
    : path_(std::move(path)),
      shared_(shared),
      name_(shared == nullptr ? path_ : "the keys in the database"),
      are_needed_(shared != nullptr || !keys.empty()),
      poll_every_(poll_every) {
  apply(keys);
  if (shared_ == nullptr) return;
  const MutexLock lock(mutex_);
  is_running_ = true;
  thread_ = std::thread([this] { run_changes(); });
}

KeyRing::~KeyRing() {
  std::deque<MoveOnlyFunction<void()>> dropped;  // Their replies are called without the lock.
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    dropped = std::exchange(changes_, {});
    thread = std::exchange(thread_, {});
  }
  changed_.notify_all();
  if (shared_ != nullptr) shared_->cancel();
  if (thread.joinable()) thread.join();
}

std::shared_ptr<const KeyRing::Entries> KeyRing::entries() const {
  const MutexLock lock(mutex_);
  return entries_;
}

bool KeyRing::is_in_effect(const Account& account) const {
  if (!account.digest()) return true;
  const auto now = entries();
  return std::ranges::any_of(*now, [&](const Entry& entry) {
    return entry.key.digest == *account.digest() && entry.key.tenant == account.tenant() &&
           entry.key.is_admin == account.is_admin();
  });
}

void KeyRing::apply(const std::vector<ApiKey>& keys) {
  const auto before = entries();
  auto next = std::make_shared<Entries>();
  for (const ApiKey& key : keys) {
    const auto known = before ? std::ranges::find(*before, key, &Entry::key) : Entries::const_iterator();
    const bool is_known = before && known != before->end();
    next->push_back({key, is_known ? known->account : std::make_shared<Account>(key)});
  }
  std::vector<std::shared_ptr<std::function<void()>>> wakes;  // Called without the lock.
  {
    const MutexLock lock(mutex_);
    entries_ = std::move(next);
    std::erase_if(wakes_, [&](const auto& wake) {
      if (auto alive = wake.lock()) {
        wakes.push_back(std::move(alive));
        return false;
      }
      return true;
    });
  }
  for (const auto& wake : wakes) run_noting(*wake);
}

std::shared_ptr<void> KeyRing::on_change(std::function<void()> wake) {
  auto shared = std::make_shared<std::function<void()>>(std::move(wake));
  const MutexLock lock(mutex_);
  std::erase_if(wakes_, [](const auto& other) { return other.expired(); });
  wakes_.push_back(shared);
  return shared;
}

// --- The thread

template <class T>
void KeyRing::change(Promise<KeyOutcome<T>> reply, MoveOnlyFunction<Expected<KeyOutcome<T>>()> work) {
  if (path_.empty() && shared_ == nullptr) {
    return reply(KeyOutcome<T>(refuse(400,
                                      "this umad has no file of keys: make one with a line of umad key new NAME, name it in "
                                      "http.keys_file and start umad again")));
  }
  const auto shared = std::make_shared<Promise<KeyOutcome<T>>>(std::move(reply));  // The thread's, unless it cannot be started.
  const auto begun = contain([&]() -> Expected<Unit> {
    const MutexLock lock(mutex_);
    if (changes_.size() >= kChangesMax) {
      return fail(ErrorCode::limit_wait,
                  std::format("{} changes of keys are waiting, and that is the limit: try again later", changes_.size()));
    }
    if (!is_running_) {
      if (thread_.joinable()) thread_.join();  // It ends without the lock.
      thread_ = std::thread([this] { run_changes(); });
      is_running_ = true;
    }
    changes_.emplace_back([shared, work = std::move(work)]() mutable { (*shared)(contain(work)); });
    return Unit{};
  });
  changed_.notify_all();
  if (!begun) (*shared)(std::unexpected(begun.error()));
}

void KeyRing::run_changes() {
  set_thread_name("uma-keys");
  while (auto next = next_change()) run_noting(*next);
}

std::optional<MoveOnlyFunction<void()>> KeyRing::next_change() {
  const MutexLock lock(mutex_);
  while (shared_ != nullptr && !is_ending_ && changes_.empty()) {
    if (std::chrono::steady_clock::now() >= next_poll_) return [this] { poll(); };
    changed_.wait_until(mutex_, next_poll_);
  }
  is_running_ = !changes_.empty();
  if (!is_running_) return std::nullopt;
  std::optional next(std::move(changes_.front()));
  changes_.pop_front();
  return next;
}

// Puts what other daemons have changed into effect.
void KeyRing::poll() {
  const auto changed = contain([this]() -> Expected<Unit> {
    auto text = shared_->read_changes();
    if (!text) return std::unexpected(text.error());
    if (!*text) return Unit{};
    const auto keys = keys_in(name_, **text);
    if (!keys) return std::unexpected(keys.error());
    apply(*keys);
    return Unit{};
  });
  next_poll_ = std::chrono::steady_clock::now() + poll_every_;
  if (!changed && !is_failing_) log_error("keys    {}; those that are known stay in effect", changed.error().message);
  if (changed && is_failing_) log_info("keys    {} are read again", name_);
  is_failing_ = !changed;
}

// --- The changes

Expected<Unit> KeyRing::edit_text(const TextEdit& edit, bool* is_written) {
  return shared_ != nullptr ? shared_->edit(edit) : edit_file(path_, kKeysFile, edit, is_written);
}

void KeyRing::add(ApiKey wanted, AccountPtr caller, Promise<KeyOutcome<NewKey>> reply) {
  change<NewKey>(std::move(reply),
                 [this, wanted = std::move(wanted), caller = std::move(caller)] { return add_now(wanted, caller.get()); });
}

void KeyRing::remove(std::string name, AccountPtr caller, Promise<KeyOutcome<Unit>> reply) {
  change<Unit>(std::move(reply),
               [this, name = std::move(name), caller = std::move(caller)] { return remove_now(name, caller.get()); });
}

// Writes what `edit` makes of the text and its keys, and puts it into effect. A refusal in `outcome` leaves the text as it is.
template <class T, class Edit>
Expected<KeyOutcome<T>> KeyRing::edit_keys(const Account* caller, const Edit& edit) {
  KeyOutcome<T> outcome;
  std::vector<ApiKey> after;
  bool is_written = false;
  const auto change = [&](const std::string& text) -> Expected<std::string> {
    const auto keys = keys_in(name_, text);
    if (!keys) return std::unexpected(keys.error());
    if (has_lost_rights(*keys, caller)) {
      outcome = refuse(401, "the key of this request is no administrator's any more");
      return leave_file();
    }
    Expected<std::string> next = edit(text, *keys, outcome);
    if (!outcome) return leave_file();
    if (!next) return next;
    auto changed = keys_in(name_, *next);
    if (!changed) return std::unexpected(std::move(changed.error()));
    after = *std::move(changed);
    return next;
  };
  const auto edited = edit_text(change, &is_written);
  if (!outcome) return outcome;
  if (edited || is_written) apply(after);
  if (!edited) return std::unexpected(edited.error());
  return outcome;
}

Expected<KeyOutcome<NewKey>> KeyRing::add_now(const ApiKey& wanted, const Account* caller) {
  using Keys = std::vector<ApiKey>;
  auto done = edit_keys<NewKey>(
      caller, [&](const std::string& text, const Keys& keys, KeyOutcome<NewKey>& outcome) -> Expected<std::string> {
        if (find_key(keys, wanted.name) != nullptr) {
          outcome = refuse(409, std::format("there is a key {}: choose another name, or delete that key", wanted.name));
          return leave_file();
        }
        if (keys.size() >= kKeysMax) {
          outcome = refuse(409, std::format("there are {} keys, and that is the limit: delete some", keys.size()));
          return leave_file();
        }
        auto made = make_api_key(wanted.name, wanted);
        if (!made) return std::unexpected(std::move(made.error()));
        std::string next = std::format("{}{}{}\n", text, text.empty() || text.ends_with('\n') ? "" : "\n", made->line);
        outcome = *std::move(made);
        return next;
      });
  if (done && *done) log_info("keys    {}: made over HTTP", wanted.name);
  return done;
}

Expected<KeyOutcome<Unit>> KeyRing::remove_now(const std::string& name, const Account* caller) {
  if (caller != nullptr && caller->key_name() == name) {
    return KeyOutcome<Unit>(refuse(409, "it is the key of this request: delete it with another key"));
  }
  using Keys = std::vector<ApiKey>;
  auto done = edit_keys<Unit>(
      caller, [&](const std::string& text, const Keys& keys, KeyOutcome<Unit>& outcome) -> Expected<std::string> {
        const ApiKey* key = find_key(keys, name);
        const auto stays = [&](const ApiKey& each) { return each.name != name; };
        // A key that was taken out of the file by hand has nothing in the file any more.
        const bool is_known =
            key != nullptr || std::ranges::contains(*entries(), name, [](const Entry& e) { return e.key.name; });
        if (!is_known) outcome = refuse(404, "there is no key of this name");
        const bool is_last_admin = key != nullptr && key->is_admin &&
                                   std::ranges::none_of(keys, [&](const ApiKey& each) { return stays(each) && each.is_admin; });
        if (is_last_admin) outcome = refuse(409, "it is the only key of an administrator: make another one before");
        // An empty file must not open a daemon that was meant to be locked.
        if (std::ranges::none_of(keys, stays)) outcome = refuse(409, "it is the last key: make another one before");
        return without_api_key(text, name);
      });
  if (done && *done) log_info("keys    {}: deleted over HTTP", name);
  return done;
}

}  // namespace uma::server
