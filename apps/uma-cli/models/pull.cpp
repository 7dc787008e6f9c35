#include "uma-cli/models/pull.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <format>
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

// The checksums of the user and of the hub have to agree.
Result<std::string> agreed_sum(const std::string& given, const std::string& of_hub, const std::string& name) {
  if (!given.empty() && !of_hub.empty() && given != of_hub)
    return fail(ExitCode::protocol,
                std::format("the hub lists the SHA-256 {1} for {0}, but --sha256 is {2}", name, of_hub, given));
  return given.empty() ? of_hub : given;
}

Result<Wanted> look_up(const HubName& name, const Hub& hub, const std::string& sha256, Http& http, Interrupts& interrupts) {
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
  auto file = choose_file(files, name);
  if (!file) return std::unexpected(file.error());
  auto url = parse_url(file_url(hub.endpoint, name, file->path));
  if (!url) return std::unexpected(url.error());
  auto sum = agreed_sum(sha256, file->sha256, file->path);
  if (!sum) return std::unexpected(sum.error());
  return Wanted{.url = std::move(*url),
                .name = printable_line(file->path.substr(file->path.rfind('/') + 1)),
                .size = file->size,
                .sha256 = std::move(*sum),
                .is_on_hub = true};
}

Result<void> make_private_folders(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return {};
  if (auto parent = make_private_folders(folder.parent_path()); !parent) return parent;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(ExitCode::server, std::format("{}: {}", folder.string(), std::strerror(errno)));
  return {};
}

// The file to write. `name` is its name at the source.
Result<std::string> target_for(const PullOptions& options, const Result<std::string>& name) {
  std::error_code problem;
  if (!options.out.empty()) {
    const fs::path path = fs::absolute(options.out, problem);
    if (problem || !path.has_filename())
      return fail(ExitCode::usage, std::format("--out {} is not the path of a file", options.out));
    return path.string();
  }
  if (!name) return name;
  std::string folder = options.folder;
  if (folder.empty()) folder = models_folder(from_environment("XDG_DATA_HOME"), from_environment("HOME"));
  if (folder.empty()) return fail(ExitCode::usage, "neither XDG_DATA_HOME nor HOME is set: give --out FILE");
  if (auto made = make_private_folders(folder); !made) return std::unexpected(made.error());
  return folder + '/' + *name;
}

std::string summary(const std::string& target, const std::string& sum, std::string_view checked) {
  std::error_code problem;
  const auto size = fs::file_size(target, problem);
  return std::format("{}\nsize    {} ({} bytes)\nsha256  {} ({})\nserve   umad --model {}\n", target,
                     human_bytes(static_cast<double>(size)), size, sum, checked, shell_word(target));
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
  // With --folder the caller is umad, whose clients have no flags.
  return fail(ExitCode::usage,
              std::format("{} already exists{}: {}", target, wanted.sha256.empty() ? "" : " with different contents",
                          options.folder.empty() ? "--force replaces it, --out FILE keeps both" : "delete that model first"));
}

// The file of a pull.
struct Pulled {
  std::string path;
  std::string sha256;
  std::string checked;  // Text about what the checksum was compared with.
};

Result<Pulled> fetch_file(const PullOptions& options, Interrupts& interrupts) {
  // With SIGXFSZ ignored, a file beyond a limit of this process fails with EFBIG, which has a message.
  std::signal(SIGXFSZ, SIG_IGN);
  auto source = parse_source(options.source);
  if (!source) return std::unexpected(source.error());
  std::string given_sum;
  if (!options.sha256.empty()) {
    auto parsed = parse_sha256(options.sha256);
    if (!parsed) return std::unexpected(parsed.error());
    given_sum = std::move(*parsed);
  }
  auto hub = hub_of_environment();
  if (!hub) return std::unexpected(hub.error());
  const SteadyClock clock;
  Progress progress(progress_style(options.is_quiet, options.as_json), clock);
  Http http(hub->credentials, options.stall_timeout_s, interrupts);

  Wanted wanted;
  Result<std::string> name;
  if (const Url* url = std::get_if<Url>(&*source)) {
    name = file_name_of_url(*url);
    wanted = {.url = *url,
              .name = name ? *name : url->host,
              .size = {},
              .sha256 = given_sum,
              .is_on_hub = url->origin == hub->credentials.origin};
  } else {
    auto found = look_up(std::get<HubName>(*source), *hub, given_sum, http, interrupts);
    if (!found) return std::unexpected(found.error());
    wanted = std::move(*found);
    name = safe_file_name(wanted.name);
  }
  auto target = target_for(options, name);
  if (!target) return std::unexpected(target.error());

  auto part = PartFile::open(*target);
  if (!part) return std::unexpected(part.error());
  // Checked under the lock, so that no other process creates it now.
  auto here = is_here(*target, wanted, options, progress, interrupts);
  if (!here) return std::unexpected(here.error());
  const std::string_view checked = wanted.sha256.empty() ? "computed here; no checksum to compare with"
                                   : given_sum.empty()   ? "matches the hub"
                                                         : "matches --sha256";
  std::string sum = wanted.sha256;
  if (!*here) {
    auto fetched = download(wanted, **part, http, progress, interrupts);
    if (!fetched) return std::unexpected(fetched.error());
    sum = std::move(*fetched);
    if (auto published = (*part)->publish(options.is_forced); !published) return std::unexpected(published.error());
  }
  return Pulled{.path = *target,
                .sha256 = sum,
                .checked = *here ? std::format("{}; the file was already here", checked) : std::string(checked)};
}

}  // namespace

Result<std::string> pull_file(const PullOptions& options, Interrupts& interrupts) {
  return fetch_file(options, interrupts).transform([](const Pulled& pulled) { return pulled.path; });
}

Result<void> run_pull(const PullOptions& options, Output& output, Interrupts& interrupts) {
  const auto pulled = fetch_file(options, interrupts);
  if (!pulled) return std::unexpected(pulled.error());
  if (options.as_json) {
    std::string line;
    json::ObjectWriter object(line);
    object.field("path", pulled->path);
    object.field("sha256", pulled->sha256);
    object.close();
    return print(output, line + '\n');
  }
  if (options.is_quiet) return {};
  return print(output, summary(pulled->path, pulled->sha256, pulled->checked));
}

}  // namespace uma::cli
