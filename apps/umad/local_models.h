// The models of this machine: downloads by run_pull_process() into the folder of pulled models, and names in a file of the data
// folder:
//
//   model_aliases    ALIAS MODEL    one per line
//
// Their cards are in models.yaml.
//
// Thread rule: calls come from any thread; the pool's replies come from its own. Each download has a thread ("uma-pull"), and
// so has each change of names or cards while it lasts ("uma-names"), because it waits for the disk.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "core/model_library.h"
#include "pool/model_pool.h"

namespace uma::umad {

struct LocalModelsOptions {
  std::string folder;   // The folder of pulled models; empty: nothing can be downloaded.
  std::string program;  // Path of uma-cli.
  std::string aliases_file;
};

class LocalModels final : public ModelLibrary {
 public:
  // Requires: the pool is stopped, so that it replies no more, before the object is destroyed.
  LocalModels(LocalModelsOptions options, pool::ModelPool& pool) : options_(std::move(options)), pool_(pool) {}
  ~LocalModels() override { stop(); }

  void pull(std::string source, std::shared_ptr<PullSink> sink) override;
  [[nodiscard]] std::vector<PullInProgress> pulls() const override;
  void remove(std::string name, Promise<Unit> reply) override;
  void add_alias(std::string model, std::string alias, Promise<Unit> reply) override;
  void read_card(std::string model, Promise<std::string> reply) override;
  void store_card(std::string model, std::string card, std::optional<std::string> was, Promise<std::string> reply) override;

  // Cancels the downloads, and refuses further ones and changes of names. Does not block.
  void cancel();
  // Like cancel(), and returns when none is left: a download ends within some seconds.
  void stop();

 private:
  struct Work {
    std::string source;  // The download's source; empty: a change of names or cards.
    std::vector<std::shared_ptr<PullSink>> sinks{};
    PullProgress progress{};
    std::thread thread{};
    bool is_under_way = true;  // Its outcome is not known yet.
    bool is_unwanted = false;  // The download is being ended.
    bool has_ended = false;    // Its thread ends now.
  };
  struct Alias {
    std::string name;
    std::string model;
  };

  // Runs `work` on a thread of its own; `sink` follows a download. Errors: E_LIMIT_003.
  [[nodiscard]] Expected<Unit> start(const std::string& source, std::function<void(Work&)> work,
                                     std::shared_ptr<PullSink> sink = nullptr);
  // Before anybody is told, so that who is told may begin it again. Returns the sinks.
  std::vector<std::shared_ptr<PullSink>> set_done(Work& work);
  // Runs `work` on a thread of its own, and replies with its result.
  template <class T>
  void run_change(std::function<Expected<T>()> work, Promise<T> reply);
  void run_pull(const std::string& source, Work& mine);
  [[nodiscard]] Expected<std::string> fetch(const std::string& source, Work& mine);
  // Tells all sinks. Returns whether one of them still wants the download, and the daemon does not stop.
  [[nodiscard]] bool tell(Work& mine, const PullProgress& progress);
  [[nodiscard]] Expected<std::string> change_card(const std::string& model, const std::string& card,
                                                  const std::optional<std::string>& was);
  [[nodiscard]] Expected<Unit> name_model(const std::string& model, const std::string& alias);
  [[nodiscard]] Expected<Unit> drop_alias(const std::string& alias, const std::string& model);
  // Errors: E_IO_001 if there is a file that cannot be read.
  [[nodiscard]] Expected<std::vector<Alias>> read_aliases() const REQUIRES_LOCK(names_mutex_);
  [[nodiscard]] Expected<Unit> write_aliases(const std::vector<Alias>& aliases) REQUIRES_LOCK(names_mutex_);
  // Removes the aliases that `is_dropped` selects. Returns whether there was one.
  template <class PredicateT>
  [[nodiscard]] Expected<bool> drop_aliases(PredicateT is_dropped);

  const LocalModelsOptions options_;
  pool::ModelPool& pool_;

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Work>> works_ GUARDED_BY(mutex_);
  bool is_stopped_ GUARDED_BY(mutex_) = false;

  Mutex names_mutex_;  // Held while the aliases' file is changed.
};

// Why `source` is not one that can be pulled; empty: it may be. Pure.
[[nodiscard]] std::string why_not_a_source(std::string_view source);
// `source` as logs and names have it: without the query of a URL, which may be secret. Pure.
[[nodiscard]] std::string shown_source(std::string_view source);

}  // namespace uma::umad
