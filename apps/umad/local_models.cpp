#include "umad/local_models.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <format>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/system/thread_name.h"
#include "base/text.h"
#include "base/thrown.h"
#include "base/utf8.h"
#include "pool/card_edit.h"
#include "pool/model_card.h"
#include "umad/data_dir.h"
#include "umad/process/pull_process.h"

namespace uma::umad {
namespace {

constexpr std::ptrdiff_t kPullsMax = 4;
constexpr std::ptrdiff_t kChangesMax = 16;  // Changes of names and cards in progress.
constexpr std::size_t kAliasesMax = 1024;

bool is_url(std::string_view source) {
  return source.contains("://");
}

// The error without the path of the folder, which is no client's business.
Error without_folder(Error error, const std::string& folder) {
  const std::string prefix = folder + '/';
  for (std::size_t at = error.message.find(prefix); at != std::string::npos; at = error.message.find(prefix, at)) {
    error.message.erase(at, prefix.size());
  }
  return error;
}

}  // namespace

std::string why_not_a_source(std::string_view source) {
  const auto is_bad = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; };
  if (source.size() > kPullSourceBytesMax)
    return std::format("it has {} bytes, more than {}", source.size(), kPullSourceBytesMax);
  if (!is_utf8(source) || std::ranges::any_of(source, is_bad)) return "it has blanks or control characters";
  const std::string shown = lower_ascii(shown_source(source));
  if (is_url(shown) && std::string_view(shown).substr(0, shown.find('/', shown.find("://") + 3)).contains('@'))
    return "it has a user name or a password: give a URL without them";
  if (is_url(shown) ? shown.starts_with("http://") || shown.starts_with("https://")
                    : shown.contains('/') && !shown.starts_with('-')) {
    return {};
  }
  return "it is neither OWNER/REPO[:FILE-OR-QUANT] nor an http(s) URL";
}

std::string shown_source(std::string_view source) {
  return std::string(source.substr(0, is_url(source) ? source.find_first_of("?#") : source.size()));
}

// --- Threads

Expected<Unit> LocalModels::start(const std::string& source, std::function<void(Work&)> work, std::shared_ptr<PullSink> sink) {
  return contain([&]() -> Expected<Unit> {
    const MutexLock lock(mutex_);
    if (is_stopped_) return fail(ErrorCode::limit_wait, "the daemon is stopping");
    std::erase_if(works_, [](const std::unique_ptr<Work>& other) {
      if (other->has_ended) other->thread.join();
      return other->has_ended;
    });
    const auto is_same = [&](const auto& other) { return other->is_under_way && other->source == source; };
    if (const auto same = std::ranges::find_if(works_, is_same); !source.empty() && same != works_.end()) {
      if ((*same)->is_unwanted) {
        return fail(ErrorCode::limit_wait,
                    std::format("the download of {} is being ended: try again later", shown_source(source)));
      }
      (*same)->sinks.push_back(std::move(sink));
      return Unit{};
    }
    const auto count = [&](bool are_pulls) REQUIRES_LOCK(mutex_) {
      return std::ranges::count_if(
          works_, [&](const auto& other) { return other->is_under_way && other->source.empty() != are_pulls; });
    };
    const std::ptrdiff_t pulls = count(true);
    if (!source.empty() && pulls >= kPullsMax) {
      return fail(ErrorCode::limit_wait,
                  std::format("{} downloads are in progress, and the limit is {}: try again later", pulls, kPullsMax));
    }
    const std::ptrdiff_t changes = count(false);
    if (source.empty() && changes >= kChangesMax) {
      return fail(ErrorCode::limit_wait,
                  std::format("{} changes of names and cards are in progress, and the limit is {}: try again later", changes,
                              kChangesMax));
    }
    works_.reserve(works_.size() + 1);  // So that a thread that has begun is kept.
    auto begun = std::make_unique<Work>(source);
    if (sink) begun->sinks.push_back(std::move(sink));
    begun->thread = std::thread([this, work = std::move(work), mine = begun.get()] {
      run_noting([&] { work(*mine); });
      const MutexLock end_lock(mutex_);
      mine->has_ended = true;
    });
    works_.push_back(std::move(begun));
    return Unit{};
  });
}

std::vector<std::shared_ptr<PullSink>> LocalModels::set_done(Work& work) {
  const MutexLock lock(mutex_);
  work.is_under_way = false;
  return std::exchange(work.sinks, {});
}

void LocalModels::cancel() {
  const MutexLock lock(mutex_);
  is_stopped_ = true;
}

void LocalModels::stop() {
  std::vector<std::unique_ptr<Work>> works;
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
    works = std::exchange(works_, {});
  }
  for (const auto& work : works) work->thread.join();
}

// --- Downloads

void LocalModels::pull(std::string source, std::shared_ptr<PullSink> sink) {
  if (const auto known = pool_.resolve(shown_source(source)); known && !source.empty()) return sink->end(*known);
  if (const std::string why = why_not_a_source(source); !why.empty()) {
    const std::string what = is_url(source) ? "the URL" : std::format("\"{}\"", source.substr(0, 100));
    return sink->end(fail(ErrorCode::proto_field, std::format("{} cannot be pulled: {}", what, why)));
  }
  if (options_.folder.empty()) {
    return sink->end(
        fail(ErrorCode::io_failed, "there is no folder for models, because neither XDG_DATA_HOME nor HOME is set for umad"));
  }
  const auto run = [this, source](Work& mine) {
    set_thread_name("uma-pull");
    run_pull(source, mine);
  };
  if (const auto started = start(source, run, sink); !started) sink->end(std::unexpected(started.error()));
}

std::vector<PullInProgress> LocalModels::pulls() const {
  const MutexLock lock(mutex_);
  std::vector<PullInProgress> all;
  for (const auto& work : works_) {
    if (work->is_under_way && !work->source.empty()) all.emplace_back(shown_source(work->source), work->progress);
  }
  return all;
}

void LocalModels::run_pull(const std::string& source, Work& mine) {
  const auto fetched = contain([&] { return fetch(source, mine); });
  const std::vector<std::shared_ptr<PullSink>> sinks = set_done(mine);
  run_noting([&] {
    if (fetched) return log_info("model   {}: pulled from {}", *fetched, shown_source(source));
    const std::string& message = fetched.error().message;  // The first of several lines is logged.
    log_warning("pull of {}: {}", shown_source(source), message.substr(0, message.find('\n')));
  });
  for (const auto& sink : sinks) run_noting([&] { sink->end(fetched); });
}

bool LocalModels::tell(Work& mine, const PullProgress& progress) {
  std::vector<std::shared_ptr<PullSink>> sinks;
  {
    const MutexLock lock(mutex_);
    if (is_stopped_) return false;
    mine.progress = progress;
    sinks = mine.sinks;
  }
  bool is_wanted = false;
  for (const auto& sink : sinks) is_wanted = sink->update(progress) || is_wanted;
  const MutexLock lock(mutex_);
  mine.is_unwanted = !is_wanted && mine.sinks.size() == sinks.size();
  return !mine.is_unwanted;
}

Expected<std::string> LocalModels::fetch(const std::string& source, Work& mine) {
  const auto path = run_pull_process(options_.program, options_.folder, source,
                                     [&](const PullProgress& progress) { return tell(mine, progress); });
  if (!path) return std::unexpected(without_folder(path.error(), options_.folder));
  auto name = pool_.name_of_file(*path);
  if (!name) return std::unexpected(without_folder(name.error(), options_.folder));
  const std::string alias = shown_source(source);
  if (!pool::is_model_name(alias) || pool_.resolve(alias)) return name;
  if (const auto named = name_model(*name, alias); !named) return std::unexpected(named.error());
  return name;
}

// --- Names

Expected<std::vector<LocalModels::Alias>> LocalModels::read_aliases() const {
  std::vector<Alias> aliases;
  std::error_code problem;
  if (!std::filesystem::exists(options_.aliases_file, problem) && !problem) return aliases;
  std::ifstream file(options_.aliases_file);
  if (!file)
    return fail(ErrorCode::io_failed, std::format("the further names of models cannot be read: {}", std::strerror(errno)));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Alias alias;
    if (words >> alias.name >> alias.model) aliases.push_back(std::move(alias));
  }
  if (file.bad()) return fail(ErrorCode::io_failed, "the further names of models cannot be read to their end");
  return aliases;
}

Expected<Unit> LocalModels::write_aliases(const std::vector<Alias>& aliases) {
  std::string text;
  for (const Alias& alias : aliases) text += std::format("{} {}\n", alias.name, alias.model);
  if (auto written = write_file_durably(options_.aliases_file, text); !written) return written;
  pool_.rescan();
  return Unit{};
}

template <class PredicateT>
Expected<bool> LocalModels::drop_aliases(PredicateT is_dropped) {
  const MutexLock lock(names_mutex_);
  auto aliases = read_aliases();
  if (!aliases) return std::unexpected(aliases.error());
  if (std::erase_if(*aliases, is_dropped) == 0) return false;
  if (auto written = write_aliases(*aliases); !written) return std::unexpected(written.error());
  return true;
}

Expected<Unit> LocalModels::name_model(const std::string& model, const std::string& alias) {
  const auto known = pool_.resolve(model);
  if (!known) return std::unexpected(known.error());
  if (!pool::is_model_name(alias)) {
    return fail(ErrorCode::proto_field,
                std::format("\"{}\" is not a name: 1 to 128 bytes without blanks", alias.substr(0, 100)));
  }
  if (!pool::is_model_name(*known)) {
    return fail(ErrorCode::proto_field,
                std::format("the model \"{}\" cannot have a further name, because its own has blanks", *known));
  }
  const MutexLock lock(names_mutex_);
  if (const auto taken = pool_.resolve(alias)) {
    if (*taken == *known) return Unit{};
    return fail(ErrorCode::proto_field, std::format("the name {} belongs to the model {}", alias, *taken));
  }
  auto aliases = read_aliases();
  if (!aliases) return std::unexpected(aliases.error());
  std::erase_if(*aliases, [&](const Alias& other) { return other.name == alias; });  // The alias of a model that is gone.
  if (aliases->size() >= kAliasesMax) {
    return fail(ErrorCode::proto_field,
                std::format("there are {} further names, and the limit is {}: remove some", aliases->size(), kAliasesMax));
  }
  aliases->push_back({alias, *known});
  return write_aliases(*aliases);
}

template <class T>
void LocalModels::run_change(std::function<Expected<T>()> work, Promise<T> reply) {
  const auto shared = std::make_shared<Promise<T>>(std::move(reply));  // The thread's, unless it cannot be started.
  const auto started = start("", [this, work = std::move(work), shared](Work& mine) {
    set_thread_name("uma-names");
    auto done = contain(work);
    set_done(mine);
    (*shared)(std::move(done));
  });
  if (!started) (*shared)(std::unexpected(started.error()));
}

void LocalModels::add_alias(std::string model, std::string alias, Promise<Unit> reply) {
  run_change<Unit>([this, model = std::move(model), alias = std::move(alias)] { return name_model(model, alias); },
                   std::move(reply));
}

Expected<Unit> LocalModels::drop_alias(const std::string& alias, const std::string& model) {
  const auto dropped = drop_aliases([&](const Alias& other) { return other.name == alias; });
  if (!dropped) return std::unexpected(dropped.error());
  if (*dropped) return Unit{};
  const auto registry = pool_.registry();
  if (const auto found = registry->find(model); found && !(*found)->store.empty()) {
    return fail(ErrorCode::model_capability, std::format("{} is a name that {} gave to its file", alias, (*found)->store));
  }
  return fail(ErrorCode::model_capability,
              std::format("{} is an alias of {} in models.yaml: edit that file, or delete {}", alias, model, model));
}

void LocalModels::remove(std::string name, Promise<Unit> reply) {
  const auto known = pool_.resolve(name);
  if (!known) return reply(std::unexpected(known.error()));
  if (*known != name)
    return run_change<Unit>([this, name, model = *known] { return drop_alias(name, model); }, std::move(reply));
  pool_.remove(name, [this, name, reply = std::move(reply)](Expected<Unit> removed) mutable {
    if (removed) {
      const auto dropped = contain([&] { return drop_aliases([&](const Alias& alias) { return alias.model == name; }); });
      if (!dropped) removed = std::unexpected(dropped.error());
    }
    reply(std::move(removed));
  });
}

// --- Cards

void LocalModels::read_card(std::string model, Promise<std::string> reply) {
  run_change<std::string>([this, model = std::move(model)] { return pool::read_card(*pool_.registry(), model); },
                          std::move(reply));
}

void LocalModels::store_card(std::string model, std::string card, std::optional<std::string> was, Promise<std::string> reply) {
  run_change<std::string>(
      [this, model = std::move(model), card = std::move(card), was = std::move(was)] { return change_card(model, card, was); },
      std::move(reply));
}

Expected<std::string> LocalModels::change_card(const std::string& model, const std::string& card,
                                               const std::optional<std::string>& was) {
  pool_.look_at_folders();
  auto stored = pool::store_card(*pool_.registry(), model, card, was);
  if (!stored) return stored;
  log_info("model   {}: its card was changed", model);
  const auto reloaded = pool_.reload();
  if (reloaded) return stored;
  return fail(ErrorCode::io_failed,
              std::format("the card is stored, and has no effect yet, because models.yaml has a mistake: {}",
                          reloaded.error().front()));
}

}  // namespace uma::umad
