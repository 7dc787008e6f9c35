#include "umad/local_models.h"

#include <algorithm>
#include <format>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"
#include "base/thrown.h"
#include "base/utf8.h"
#include "pool/model_card.h"
#include "umad/data_dir.h"
#include "umad/pull_process.h"

namespace uma::umad {
namespace {

constexpr std::size_t kPullsMax = 4;
constexpr std::size_t kAliasesMax = 1024;

}  // namespace

std::string why_not_a_source(std::string_view source) {
  const auto is_bad = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; };
  if (source.size() > kPullSourceBytesMax)
    return std::format("it has {} bytes, more than {}", source.size(), kPullSourceBytesMax);
  if (!is_utf8(source) || std::ranges::any_of(source, is_bad)) return "it has blanks or control characters";
  const bool is_url = source.starts_with("http://") || source.starts_with("https://");
  if (is_url || (source.contains('/') && !source.starts_with('-'))) return {};
  return "it is neither OWNER/REPO[:FILE-OR-QUANT] nor an http(s) URL";
}

// --- Downloads

void LocalModels::pull(std::string source, std::shared_ptr<PullSink> sink) {
  if (const auto known = pool_.resolve(source); known && !source.empty()) return sink->end(*known);
  if (const std::string why = why_not_a_source(source); !why.empty())
    return sink->end(fail(ErrorCode::proto_field, std::format("\"{}\" cannot be pulled: {}", source.substr(0, 100), why)));
  if (options_.folder.empty()) {
    return sink->end(
        fail(ErrorCode::io_failed, "there is no folder for models, because neither XDG_DATA_HOME nor HOME is set for umad"));
  }
  const auto started = contain([&]() -> Expected<Unit> {
    const MutexLock lock(mutex_);
    if (is_stopped_) return fail(ErrorCode::limit_wait, "the daemon is stopping");
    std::erase_if(pulls_, [](const std::unique_ptr<Pull>& pull) {
      if (pull->has_ended) pull->thread.join();
      return pull->has_ended;
    });
    if (pulls_.size() >= kPullsMax) {
      return fail(ErrorCode::limit_wait,
                  std::format("{} downloads are in progress, and the limit is {}: try again later", pulls_.size(), kPullsMax));
    }
    pulls_.reserve(kPullsMax);
    auto pull = std::make_unique<Pull>();
    pull->thread = std::thread([this, source, sink, mine = pull.get()] {
      set_thread_name("uma-pull");
      run_pull(source, *sink, *mine);
    });
    pulls_.push_back(std::move(pull));
    return Unit{};
  });
  if (!started) sink->end(std::unexpected(started.error()));
}

void LocalModels::run_pull(const std::string& source, PullSink& sink, Pull& mine) {
  auto fetched = contain([&] { return fetch(source, sink); });
  const std::string shown = source.substr(0, source.find('?'));  // What follows may be a secret.
  if (fetched) {
    log_info("model   {}: pulled from {}", *fetched, shown);
  } else {
    log_warning("pull of {}: {}", shown, fetched.error().message);
  }
  run_noting([&] { sink.end(std::move(fetched)); });
  const MutexLock lock(mutex_);
  mine.has_ended = true;
}

Expected<std::string> LocalModels::fetch(const std::string& source, PullSink& sink) {
  const auto path = run_pull_process(options_.program, options_.folder, source,
                                     [&](const PullProgress& progress) { return sink.update(progress) && !is_stopped(); });
  if (!path) return path;
  auto name = pool_.name_of_file(*path);
  const bool is_name = pool::is_model_name(source) && !source.contains('?');
  if (!name || !is_name || pool_.resolve(source)) return name;
  if (const auto named = name_model(*name, source); !named) return std::unexpected(named.error());
  return name;
}

bool LocalModels::is_stopped() const {
  const MutexLock lock(mutex_);
  return is_stopped_;
}

void LocalModels::stop() {
  std::vector<std::unique_ptr<Pull>> pulls;
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
    pulls = std::exchange(pulls_, {});
  }
  for (const auto& pull : pulls) pull->thread.join();
}

// --- Names

std::vector<LocalModels::Alias> LocalModels::read_aliases() const {
  std::vector<Alias> aliases;
  std::ifstream file(options_.aliases_file);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Alias alias;
    if (words >> alias.name >> alias.model) aliases.push_back(std::move(alias));
  }
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
  std::vector<Alias> aliases = read_aliases();
  if (std::erase_if(aliases, is_dropped) == 0) return false;
  if (auto written = write_aliases(aliases); !written) return std::unexpected(written.error());
  return true;
}

Expected<Unit> LocalModels::name_model(const std::string& model, const std::string& alias) {
  const auto known = pool_.resolve(model);
  if (!known) return std::unexpected(known.error());
  if (!pool::is_model_name(alias)) {
    return fail(ErrorCode::proto_field,
                std::format("\"{}\" is not a name: 1 to 128 bytes without blanks", alias.substr(0, 100)));
  }
  const MutexLock lock(names_mutex_);
  if (const auto taken = pool_.resolve(alias)) {
    if (*taken == *known) return Unit{};
    return fail(ErrorCode::proto_field, std::format("the name {} belongs to the model {}", alias, *taken));
  }
  std::vector<Alias> aliases = read_aliases();
  std::erase_if(aliases, [&](const Alias& other) { return other.name == alias; });  // Of a model that is gone.
  if (aliases.size() >= kAliasesMax) {
    return fail(ErrorCode::proto_field,
                std::format("there are {} further names, and the limit is {}: remove some", aliases.size(), kAliasesMax));
  }
  aliases.push_back({alias, *known});
  return write_aliases(aliases);
}

void LocalModels::add_alias(std::string model, std::string alias, Reply<Unit> reply) {
  reply(contain([&] { return name_model(model, alias); }));
}

void LocalModels::remove(std::string name, Reply<Unit> reply) {
  const auto known = pool_.resolve(name);
  if (!known) return reply(std::unexpected(known.error()));
  if (*known != name) {
    const auto dropped = contain([&] { return drop_aliases([&](const Alias& alias) { return alias.name == name; }); });
    if (!dropped) return reply(std::unexpected(dropped.error()));
    if (*dropped) return reply(Unit{});
    return reply(fail(ErrorCode::model_capability,
                      std::format("{} is an alias of {} in models.yaml: edit that file, or delete {}", name, *known, *known)));
  }
  pool_.remove(name, [this, name, reply = std::move(reply)](Expected<Unit> removed) mutable {
    if (removed) {
      const auto dropped = contain([&] { return drop_aliases([&](const Alias& alias) { return alias.model == name; }); });
      if (!dropped) removed = std::unexpected(dropped.error());
    }
    reply(std::move(removed));
  });
}

}  // namespace uma::umad
