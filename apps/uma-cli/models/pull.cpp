#include "uma-cli/models/pull.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <format>
#include <iterator>
#include <ranges>
#include <sys/stat.h>
#include <system_error>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "json/json_writer.h"
#include "uma-cli/format.h"
#include "uma-cli/models/download.h"
#include "uma-cli/models/http.h"
#include "uma-cli/models/hub.h"
#include "uma-cli/models/part_file.h"
#include "uma-cli/models/pull_source.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/progress.h"
#include "uma-cli/resume.h"

namespace uma::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kListingPagesMax = 100;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

struct Hub {
  std::string endpoint;  // Base URL of the hub, without a slash at the end.
  Credentials credentials;
};

Result<Hub> hub_of_environment() {
  std::string endpoint = from_environment("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  auto url = parse_url(endpoint);
  if (!url) return fail(ExitCode::usage, "HF_ENDPOINT: " + url.error().message);
  std::string token = from_environment("HF_TOKEN");
  // Other characters could add header lines to a request.
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; }))
    return fail(ExitCode::usage, "HF_TOKEN contains a blank or a character that is not printable ASCII: check how it was set");
  return Hub{std::move(endpoint), {std::move(url->origin), std::move(token)}};
}

struct RemoteFile {
  Wanted wanted;
  Result<std::string> name;  // Its name here; a failure if it has none that is valid.
};

// A model at its source.
struct Remote {
  std::vector<RemoteFile> files{};  // One, or all pieces in their order.
  std::optional<RemoteFile> projector{};
};

// The checksums of the user and of the hub have to agree.
Result<void> give_sum(Remote& remote, const std::string& text) {
  auto given = parse_sha256(text);
  if (!given) return std::unexpected(given.error());
  if (remote.files.size() > 1) {
    return fail(ExitCode::usage, std::format("the model has {} files, and --sha256 is of one", remote.files.size()));
  }
  Wanted& wanted = remote.files.front().wanted;
  if (!wanted.sha256.empty() && wanted.sha256 != *given) {
    return fail(ExitCode::protocol,
                std::format("the hub lists the SHA-256 {1} for {0}, but --sha256 is {2}", wanted.name, wanted.sha256, *given));
  }
  wanted.sha256 = *std::move(given);
  return {};
}

Result<std::vector<HubFile>> list_files(const HubName& name, const Hub& hub, Http& http, Interrupts& interrupts) {
  Wanted repository{.url = {}, .name = name.repo, .size = {}, .sha256 = {}, .is_on_hub = true};
  std::vector<HubFile> files;
  std::string address = listing_url(hub.endpoint, name);
  for (int pages = 0; !address.empty() && pages < kListingPagesMax; ++pages) {
    auto url = parse_url(address);
    if (!url) return std::unexpected(url.error());
    repository.url = *url;
    auto page = fetch_page(*url, repository, http, interrupts);
    if (!page) return std::unexpected(page.error());
    auto more = parse_listing(page->text);
    if (!more) return std::unexpected(more.error());
    std::ranges::move(*more, std::back_inserter(files));
    address = next_page(page->head.link);
  }
  return files;
}

Result<RemoteFile> remote_file(const HubFile& file, const HubName& name, const Hub& hub) {
  auto url = parse_url(file_url(hub.endpoint, name, file.path));
  if (!url) return std::unexpected(url.error());
  const std::string shown = printable_line(file.path.substr(file.path.rfind('/') + 1));
  return RemoteFile{{.url = std::move(*url), .name = shown, .size = file.size, .sha256 = file.sha256, .is_on_hub = true},
                    safe_file_name(shown)};
}

Result<Remote> look_up(const HubName& name, const Hub& hub, Http& http, Interrupts& interrupts) {
  const auto listing = list_files(name, hub, http, interrupts);
  if (!listing) return std::unexpected(listing.error());
  const auto model = choose_model(*listing, name);
  if (!model) return std::unexpected(model.error());
  Remote remote;
  for (const HubFile& file : model->files) {
    auto found = remote_file(file, name, hub);
    if (!found) return std::unexpected(found.error());
    remote.files.push_back(std::move(*found));
  }
  if (model->projector) {
    auto projector = remote_file(*model->projector, name, hub);
    if (!projector) return std::unexpected(projector.error());
    remote.projector = std::move(*projector);
  }
  return remote;
}

Result<Remote> remote_of_url(const Url& given, const Hub& hub) {
  const auto urls = urls_of_model(given);
  if (!urls) return std::unexpected(urls.error());
  Remote remote;
  for (const Url& url : *urls) {
    auto name = file_name_of_url(url);
    Wanted wanted{.url = url,
                  .name = name ? *name : url.host,
                  .size = {},
                  .sha256 = {},
                  .is_on_hub = url.origin == hub.credentials.origin};
    remote.files.emplace_back(std::move(wanted), std::move(name));
  }
  return remote;
}

Result<void> make_private_folders(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return {};
  if (auto parent = make_private_folders(folder.parent_path()); !parent) return parent;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(ExitCode::server, std::format("{}: {}", folder.string(), std::strerror(errno)));
  return {};
}

// The path to write the model's file to, or its first piece.
Result<std::string> target_for(const PullOptions& options, const Remote& remote) {
  std::error_code problem;
  if (!options.out.empty()) {
    const fs::path path = fs::absolute(options.out, problem);
    if (problem || !path.has_filename())
      return fail(ExitCode::usage, std::format("--out {} is not the path of a file", options.out));
    if (remote.files.size() > 1) {
      return fail(ExitCode::usage,
                  std::format("the model has {} files, and --out names one: give --folder DIR instead", remote.files.size()));
    }
    return path.string();
  }
  const Result<std::string>& name = remote.files.front().name;
  if (!name) return name;
  std::string folder = options.folder;
  if (folder.empty()) folder = models_folder(from_environment("XDG_DATA_HOME"), from_environment("HOME"));
  if (folder.empty()) return fail(ExitCode::usage, "neither XDG_DATA_HOME nor HOME is set: give --out FILE");
  if (auto made = make_private_folders(folder); !made) return std::unexpected(made.error());
  return folder + '/' + *name;
}

// Whether the wanted file already exists. A different file of that name is a failure, unless is_forced is set.
Result<bool> is_here(const std::string& target, const Wanted& wanted, const PullOptions& options, Progress& progress,
                     Interrupts& interrupts) {
  switch (presence_of(target)) {
    case Presence::missing:
      return false;
    case Presence::other:
      return fail(ExitCode::usage,
                  std::format("{} exists and is not a regular file: choose another path with --out FILE", target));
    case Presence::file:
      break;
  }
  if (options.is_forced) return false;
  std::error_code problem;
  const auto size = fs::file_size(target, problem);
  if (!wanted.sha256.empty() && (!wanted.size || *wanted.size == size)) {
    progress.begin("checking " + wanted.name, size);
    auto sum = sha256_of_file(target, interrupts, [&](std::uint64_t done) { progress.update(done); });
    progress.end();
    if (!sum) return std::unexpected(sum.error());
    if (*sum == wanted.sha256) return true;
  }
  // With --folder the caller may be umad, whose clients have no flags.
  return fail(ExitCode::usage,
              std::format("{} already exists{}: {}", target, wanted.sha256.empty() ? "" : " with different contents",
                          options.folder.empty() ? "--force replaces it, --out FILE keeps both" : "delete that model first"));
}

// A file of a pull.
struct Step {
  Wanted wanted;
  std::string target;
  enum class Kind { first, piece, projector } kind = Kind::first;
};

// The first file comes last: when it is there, the model is whole.
Result<std::vector<Step>> plan_steps(const PullOptions& options, Remote remote) {
  const auto first = target_for(options, remote);
  if (!first) return std::unexpected(first.error());
  const std::string folder = first->substr(0, first->rfind('/') + 1);
  std::vector<Step> steps;
  for (RemoteFile& file : remote.files | std::views::drop(1)) {
    if (!file.name) return std::unexpected(file.name.error());
    steps.emplace_back(std::move(file.wanted), folder + *file.name, Step::Kind::piece);
  }
  if (remote.projector && options.has_projector && options.out.empty()) {
    if (!remote.projector->name) return std::unexpected(remote.projector->name.error());
    steps.emplace_back(std::move(remote.projector->wanted),
                       folder + projector_name(*remote.projector->name, first->substr(folder.size())), Step::Kind::projector);
  }
  steps.emplace_back(std::move(remote.files.front().wanted), *first);
  return steps;
}

struct Fetched {
  std::string path;
  std::string sha256;
  bool was_here = false;
};

// Whether a file that is already here is taken without a look at it. Any projector of the model's name will do. While the
// model's first file is missing (`is_begun`), a piece is of an earlier try.
bool is_taken(const Step& step, bool is_begun, const PullOptions& options) {
  if (options.is_forced || presence_of(step.target) != Presence::file) return false;
  return step.kind == Step::Kind::projector || (step.kind == Step::Kind::piece && is_begun && step.wanted.sha256.empty());
}

Result<Fetched> fetch_step(const Step& step, bool is_begun, const PullOptions& options, Http& http, Progress& progress,
                           Interrupts& interrupts) {
  auto part = PartFile::open(step.target);
  if (!part) return std::unexpected(part.error());
  // Checked under the lock, so that no other process creates it now.
  auto here =
      is_taken(step, is_begun, options) ? Result<bool>(true) : is_here(step.target, step.wanted, options, progress, interrupts);
  if (!here) return std::unexpected(here.error());
  if (*here) return Fetched{.path = step.target, .sha256 = step.wanted.sha256, .was_here = true};
  auto sum = download(step.wanted, **part, http, progress, interrupts);
  if (!sum) return std::unexpected(sum.error());
  if (auto published = (*part)->publish(options.is_forced); !published) return std::unexpected(published.error());
  return Fetched{.path = step.target, .sha256 = std::move(*sum)};
}

// A pull that has succeeded.
struct Pulled {
  std::vector<Fetched> files;  // The model's first file is the last.
  std::string checked;         // Text about what the checksums were compared with.
};

std::string checked_text(const std::vector<Step>& steps, bool has_given_sum) {
  if (has_given_sum) return "matches --sha256";
  const auto known = std::ranges::count_if(steps, [](const Step& step) { return !step.wanted.sha256.empty(); });
  if (known == 0) return "computed here; no checksum to compare with";
  if (known == std::ssize(steps)) return steps.size() == 1 ? "matches the hub" : "all files match the hub";
  return std::format("{} of {} files match the hub, which has no checksum of the others", known, steps.size());
}

Result<Pulled> fetch_model(const PullOptions& options, Interrupts& interrupts) {
  // With SIGXFSZ ignored, a file beyond a limit of this process fails with EFBIG, which has a message.
  std::signal(SIGXFSZ, SIG_IGN);
  auto source = parse_source(options.source);
  if (!source) return std::unexpected(source.error());
  auto hub = hub_of_environment();
  if (!hub) return std::unexpected(hub.error());
  const SteadyClock clock;
  Progress progress(progress_style(options.is_quiet, options.as_json), clock);
  Http http(hub->credentials, options.stall_timeout_s, interrupts);

  const Url* url = std::get_if<Url>(&*source);
  auto remote = url != nullptr ? remote_of_url(*url, *hub) : look_up(std::get<HubName>(*source), *hub, http, interrupts);
  if (!remote) return std::unexpected(remote.error());
  if (!options.sha256.empty()) {
    if (auto given = give_sum(*remote, options.sha256); !given) return std::unexpected(given.error());
  }
  const auto steps = plan_steps(options, *std::move(remote));
  if (!steps) return std::unexpected(steps.error());
  const bool is_begun = presence_of(steps->back().target) == Presence::missing;
  Pulled pulled{.files = {}, .checked = checked_text(*steps, !options.sha256.empty())};
  for (const Step& step : *steps) {
    auto fetched = fetch_step(step, is_begun, options, http, progress, interrupts);
    if (!fetched) return std::unexpected(fetched.error());
    pulled.files.push_back(std::move(*fetched));
  }
  return pulled;
}

std::string summary(const Pulled& pulled) {
  const Fetched& model = pulled.files.back();
  std::uint64_t size = 0;
  for (const Fetched& file : pulled.files) {
    std::error_code problem;
    const auto bytes = fs::file_size(file.path, problem);
    if (!problem) size += bytes;
  }
  std::string checked = pulled.checked;
  if (model.was_here) checked += "; the file was already here";
  std::string text =
      std::format("{}\nsize    {} ({} bytes{})\nsha256  {} ({})\n", model.path, human_bytes(static_cast<double>(size)), size,
                  pulled.files.size() == 1 ? "" : std::format(" in {} files", pulled.files.size()), model.sha256, checked);
  return text + std::format("serve   umad --model {}\n", shell_word(model.path));
}

}  // namespace

Result<std::string> pull_file(const PullOptions& options, Interrupts& interrupts) {
  return fetch_model(options, interrupts).transform([](const Pulled& pulled) { return pulled.files.back().path; });
}

Result<void> run_pull(const PullOptions& options, Output& output, Interrupts& interrupts) {
  const auto pulled = fetch_model(options, interrupts);
  if (!pulled) return std::unexpected(pulled.error());
  if (options.as_json) {
    std::string line;
    json::ObjectWriter object(line);
    object.field("path", pulled->files.back().path);
    object.field("sha256", pulled->files.back().sha256);
    object.close();
    return print(output, line + '\n');
  }
  if (options.is_quiet) return {};
  return print(output, summary(*pulled));
}

}  // namespace uma::cli
