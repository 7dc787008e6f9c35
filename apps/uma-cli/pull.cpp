#include "uma-cli/pull.h"

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
#include "uma-cli/download.h"
#include "uma-cli/format.h"
#include "uma-cli/http.h"
#include "uma-cli/hub.h"
#include "uma-cli/part_file.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/progress.h"
#include "uma-cli/pull_source.h"
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
  std::string endpoint;  // without a slash at its end
  Credentials credentials;
};

Result<Hub> hub_of_environment() {
  std::string endpoint = from_environment("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  auto url = parse_url(endpoint);
  if (!url) return fail(ExitCode::usage, "HF_ENDPOINT: " + url.error().message);
  std::string token = from_environment("HF_TOKEN");
  // Anything else could add header lines to a request.
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; }))
    return fail(ExitCode::usage, "HF_TOKEN may hold only printable ASCII characters without blanks: check how it was set");
  return Hub{std::move(endpoint), {std::move(url->origin), std::move(token)}};
}

// What the user says and what the hub says have to agree.
Result<std::string> agreed_sum(const std::string& given, const std::string& of_hub, const std::string& name) {
  if (!given.empty() && !of_hub.empty() && given != of_hub)
    return fail(ExitCode::protocol, std::format("the hub gives {} the SHA-256 {}, --sha256 says {}", name, of_hub, given));
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

// Where the file goes. `name` is what it is called where it comes from.
Result<std::string> target_for(const PullOptions& options, const Result<std::string>& name) {
  std::error_code problem;
  if (!options.out.empty()) {
    const fs::path path = fs::absolute(options.out, problem);
    if (problem || !path.has_filename()) return fail(ExitCode::usage, std::format("--out {} names no file", options.out));
    return path.string();
  }
  if (!name) return name;
  const std::string folder = models_folder(from_environment("XDG_DATA_HOME"), from_environment("HOME"));
  if (folder.empty())
    return fail(ExitCode::usage, "neither XDG_DATA_HOME nor HOME names a folder: say where to with --out FILE");
  if (auto made = make_private_folders(folder); !made) return std::unexpected(made.error());
  return folder + '/' + *name;
}

std::string summary(const std::string& target, const std::string& sum, std::string_view checked) {
  std::error_code problem;
  const auto size = fs::file_size(target, problem);
  return std::format("{}\nsize    {} ({} bytes)\nsha256  {} ({})\nserve   umad --model {}\n", target,
                     human_bytes(static_cast<double>(size)), size, sum, checked, shell_word(target));
}

// Whether the file is here already. A file that is another one is a failure, without --force.
Result<bool> is_here(const std::string& target, const Wanted& wanted, bool is_forced, Progress& progress,
                     Interrupts& interrupts) {
  switch (presence_of(target)) {
    case Presence::missing:
      return false;
    case Presence::other:
      return fail(ExitCode::usage, std::format("{} is there and is no file: name another with --out FILE", target));
    case Presence::file:
      break;
  }
  if (is_forced) return false;
  std::error_code problem;
  const auto size = fs::file_size(target, problem);
  if (!wanted.sha256.empty() && (!wanted.size || *wanted.size == size)) {
    progress.begin("checking " + wanted.name, size);
    auto sum = sha256_of_file(target, interrupts, [&](std::uint64_t done) { progress.update(done); });
    progress.end();
    if (!sum) return std::unexpected(sum.error());
    if (*sum == wanted.sha256) return true;
  }
  return fail(ExitCode::usage, std::format("{} is there already{}: --force replaces it, --out FILE keeps both", target,
                                           wanted.sha256.empty() ? "" : ", and it is another file"));
}

}  // namespace

Result<void> run_pull(const PullOptions& options, Output& output, Interrupts& interrupts) {
  // A file beyond a limit of this process is then EFBIG, which has a sentence.
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
  Progress progress(progress_style(options.is_quiet), clock);
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
  // Under the lock: nobody else makes it now.
  auto here = is_here(*target, wanted, options.is_forced, progress, interrupts);
  if (!here) return std::unexpected(here.error());
  const std::string_view checked = wanted.sha256.empty() ? "computed here, checked against nothing"
                                   : given_sum.empty()   ? "as the hub says"
                                                         : "as --sha256 says";
  std::string sum = wanted.sha256;
  if (!*here) {
    auto fetched = download(wanted, **part, http, progress, interrupts);
    if (!fetched) return std::unexpected(fetched.error());
    sum = std::move(*fetched);
    if (auto published = (*part)->publish(options.is_forced); !published) return published;
  }
  if (options.is_quiet) return {};
  return print(output, summary(*target, sum, *here ? std::format("{}; it was here already", checked) : std::string(checked)));
}

}  // namespace uma::cli
