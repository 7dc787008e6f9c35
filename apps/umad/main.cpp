// umad: reads the configuration and starts the supervisor, the daemon, or another command. Exit codes: 0 stopped regularly; 1
// an error that the next start would meet again, such as a mistake in flags or configuration, a model that cannot be loaded, or
// a socket in use; 130 and 143: `umad tune` was interrupted.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <format>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/system/heap.h"
#include "base/system/thread_name.h"
#include "llm/device/devices.h"
#include "llm/library_version.h"
#include "server/http/handlers/api_keys.h"
#include "server/passed_sockets.h"
#include "umad/check.h"
#include "umad/config.h"
#include "umad/cpu_count.h"
#include "umad/daemon.h"
#include "umad/data_dir.h"
#include "umad/devices_command.h"
#include "umad/model_choice.h"
#include "umad/open_catalog.h"
#include "umad/process/media_process.h"
#include "umad/process/signals.h"
#include "umad/process/supervised.h"
#include "umad/process/supervisor.h"
#include "umad/process/trial_process.h"
#include "umad/tune/compute.h"
#include "umad/tune/tune.h"

namespace uma::umad {
namespace {

// Every connection needs a descriptor, and the usual soft limit is meant for programs that use select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  constexpr rlim_t kEnough = 65'536;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kEnough));
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) log_debug("the limit of open files could not be raised");
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void log_start(const Config& config) {
  log_info("umad {}, process {}", UMA_VERSION, ::getpid());
  if (const std::string remark = llm::library_remark(llm::library_versions()); !remark.empty()) log_warning("{}", remark);
  if (!config.keys_superseded.empty()) {
    log_info("these settings are obsolete and ignored: {} (the scheduler sizes each batch by measured time)",
             join(config.keys_superseded));
  }
  if (!config.keys_without_effect.empty())
    log_info("these settings have no effect in this version: {}", join(config.keys_without_effect));
}

void start_log() {
  const char* debug = std::getenv("UMA_DEBUG");
  const std::string_view wanted = debug == nullptr ? "" : debug;
  const bool shows_debug = !wanted.empty() && wanted != "0";
  init_log(shows_debug ? LogLevel::debug : LogLevel::info);
}

int run_umad(const Config& config, server::PassedSockets passed, const std::optional<Supervised>& supervised) {
  log_start(config);
  raise_descriptor_limit();
  if (const auto prepared = prepare_data_dir(config.data_dir); !prepared) {
    log_error("data folder {}", prepared.error().message);
    return 1;
  }
  if (config.tune) {
    const auto model_path = choose_model(config);
    if (model_path) return run_tune(config, *model_path);
    log_error("{}", model_path.error().message);
    return 1;
  }
  auto models = find_models(config);
  if (!models) {
    log_error("{}", models.error().message);
    return 1;
  }
  for (const std::string& remark : models->registry->remarks()) log_info("models  {}", remark);
  auto catalog = open_catalog(config, *models);
  if (!catalog) {
    log_error("catalog {}", catalog.error().message);
    return 1;
  }
  return Daemon(config, std::move(passed), supervised, std::move(*models), std::move(*catalog)).run();
}

// `umad key new NAME [--admin]` prints a key for a client, and the line for the keys file.
int run_key(const std::vector<std::string>& arguments) {
  const bool is_admin = arguments.size() == 4 && arguments[3] == "--admin";
  if ((arguments.size() != 3 && !is_admin) || arguments[1] != "new" || arguments[2].starts_with('-')) {
    std::fputs(
        "usage: umad key new NAME [--admin]\n"
        "Prints a key for an HTTP client, and the line for the file of --http-keys. --admin: it may change models and keys.\n",
        stderr);
    return 1;
  }
  const auto made = server::make_api_key(arguments[2], {.is_admin = is_admin});
  if (!made) {
    std::fputs(std::format("umad: {}\n", made.error().message).c_str(), stderr);
    return 1;
  }
  std::fputs(std::format("key   {}\nline  {}\n", made->key, made->line).c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace uma::umad

int main(int argc, char** argv) {
  uma::umad::block_signals();
  uma::set_thread_name("umad");
  uma::set_up_heap();
  // The daemon's files belong to this user only, whatever mode they are created with.
  ::umask(0077);
  // Without this an abort inside the library starts a debugger, which takes seconds.
  ::setenv("GGML_NO_BACKTRACE", "1", 0);

  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments.front() == "key") return uma::umad::run_key(arguments);
  if (!arguments.empty() && arguments.front() == "devices") {
    return uma::umad::run_devices_command(std::span(arguments).subspan(1));
  }
  if (!arguments.empty() && arguments.front() == uma::umad::kTrialCommand) return uma::umad::run_trial_command(arguments);
  if (!arguments.empty() && arguments.front() == uma::umad::kMediaCommand) return uma::umad::run_media_command(arguments);
  const auto supervised = uma::umad::take_supervised();
  auto passed = uma::server::take_passed_sockets();
  if (!passed) {
    std::fputs(std::format("umad: {}\n", passed.error().message).c_str(), stderr);
    return 1;
  }
  uma::umad::PassedAddresses addresses;
  if (passed->unix_socket) addresses.socket_path = passed->unix_socket->path;
  if (passed->tcp) addresses.http = {.address = passed->tcp->address, .port = passed->tcp->port};
  if (passed->http_socket) addresses.http_socket = passed->http_socket->path;
  auto config = uma::umad::load_config(arguments, uma::umad::process_environment(), addresses);
  if (!config && uma::umad::is_check(arguments) && config.error().status != 0) {
    return uma::umad::report_mistakes(config.error(), arguments);
  }
  if (!config) {
    std::fputs(config.error().text.c_str(), config.error().status == 0 ? stdout : stderr);
    return config.error().status;
  }
  uma::umad::start_log();
  if (config->check) return uma::umad::run_check(*config);
  uma::llm::set_rpc_answer_limit(config->rpc_timeout);
  if (config->supervises && !supervised) {
    return uma::umad::run_supervisor(*config, std::move(*passed), {argv, argv + argc});
  }
  uma::umad::limit_threads(*config, uma::umad::usable_processors());
  const int status = uma::umad::run_umad(*config, std::move(*passed), supervised);
  // Contexts on a lost device are never freed, and a driver that still has them may crash in its own end (NVIDIA's for Vulkan).
  if (uma::llm::has_lost_device()) {
    std::fflush(nullptr);
    std::_Exit(status);
  }
  return status;
}
