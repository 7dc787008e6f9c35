#include "server/http/routes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <format>
#include <optional>
#include <utility>

#include "base/edit_distance.h"
#include "base/text.h"
#include "server/http/rules.h"

namespace uma::server {
namespace {

using enum boost::beast::http::verb;

// The first matching path wins.
constexpr std::array kRoutes = {
    HttpRoute{post, "/v1/chat/completions", handlers::create_chat_completion, /*takes_images=*/true},
    HttpRoute{post, "/v1/images/embeddings", handlers::embed_images, /*takes_images=*/true},
    HttpRoute{post, "/v1/images/generations", handlers::create_images},
    HttpRoute{post, "/v1/completions", handlers::create_completion},
    HttpRoute{post, "/v1/messages", handlers::create_message, /*takes_images=*/true},
    HttpRoute{post, "/v1/messages/count_tokens", handlers::count_message_tokens, /*takes_images=*/true},
    HttpRoute{post, "/v1/embeddings", handlers::create_embeddings, /*takes_images=*/true},
    HttpRoute{post, "/v1/rerank", handlers::create_rerank},
    HttpRoute{post, "/v2/rerank", handlers::create_rerank},
    HttpRoute{post, "/rerank", handlers::create_rerank},
    HttpRoute{post, "/v1/responses", handlers::create_response, /*takes_images=*/true},
    HttpRoute{get, "/v1/responses", handlers::open_response_socket, /*takes_images=*/true},
    HttpRoute{post, "/v1/responses/input_tokens", handlers::count_response_tokens, /*takes_images=*/true},
    HttpRoute{post, "/v1/responses/compact", handlers::compact_response, /*takes_images=*/true},
    HttpRoute{get, "/v1/responses/{id}", handlers::get_response},
    HttpRoute{delete_, "/v1/responses/{id}", handlers::delete_response},
    HttpRoute{post, "/v1/responses/{id}/cancel", handlers::cancel_response},
    HttpRoute{get, "/v1/responses/{id}/input_items", handlers::list_input_items},
    HttpRoute{post, "/v1/conversations", handlers::create_conversation},
    HttpRoute{get, "/v1/conversations/{id}", handlers::get_conversation},
    HttpRoute{post, "/v1/conversations/{id}", handlers::update_conversation},
    HttpRoute{delete_, "/v1/conversations/{id}", handlers::delete_conversation},
    HttpRoute{get, "/v1/conversations/{id}/items", handlers::list_conversation_items},
    HttpRoute{post, "/v1/conversations/{id}/items", handlers::create_conversation_items, /*takes_images=*/true},
    HttpRoute{get, "/v1/conversations/{id}/items/{item}", handlers::get_conversation_item},
    HttpRoute{delete_, "/v1/conversations/{id}/items/{item}", handlers::delete_conversation_item},
    HttpRoute{get, "/v1/sessions", handlers::list_sessions},
    HttpRoute{post, "/v1/sessions", handlers::create_session},
    HttpRoute{post, "/v1/sessions/import", handlers::import_session, /*takes_images=*/false, /*takes_file=*/true},
    HttpRoute{get, "/v1/sessions/{id}", handlers::get_session},
    HttpRoute{patch, "/v1/sessions/{id}", handlers::update_session},
    HttpRoute{delete_, "/v1/sessions/{id}", handlers::end_session},
    HttpRoute{post, "/v1/sessions/{id}/fork", handlers::fork_session},
    HttpRoute{post, "/v1/sessions/{id}/rewind", handlers::rewind_session},
    HttpRoute{post, "/v1/sessions/{id}/touch", handlers::touch_session},
    HttpRoute{get, "/v1/sessions/{id}/export", handlers::export_session},
    HttpRoute{get, "/v1/sessions/{id}/receipts", handlers::list_receipts},
    HttpRoute{get, "/v1/receipts/{id}", handlers::get_receipt},
    HttpRoute{get, "/v1/models", handlers::list_models},
    HttpRoute{get, "/v1/models/{id+}/card", handlers::get_card, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{put, "/v1/models/{id+}/card", handlers::put_card, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{get, "/v1/models/{id+}", handlers::get_model},
    HttpRoute{get, "/", handlers::get_root},
    HttpRoute{get, "/page.js", handlers::get_page_file},
    HttpRoute{get, "/page.css", handlers::get_page_file},
    HttpRoute{get, "/chunks/{name}", handlers::get_page_file},
    HttpRoute{get, "/licences.txt", handlers::get_page_file},
    HttpRoute{get, "/api/version", handlers::get_ollama_version},
    HttpRoute{get, "/api/tags", handlers::list_ollama_models},
    HttpRoute{get, "/api/ps", handlers::list_ollama_loaded},
    HttpRoute{post, "/api/show", handlers::show_ollama_model},
    HttpRoute{post, "/api/chat", handlers::ollama_chat, /*takes_images=*/true},
    HttpRoute{post, "/api/generate", handlers::ollama_generate, /*takes_images=*/true},
    HttpRoute{post, "/api/embed", handlers::ollama_embed},
    HttpRoute{post, "/api/embeddings", handlers::ollama_embeddings},
    HttpRoute{post, "/api/create", handlers::refuse_ollama_change},
    HttpRoute{post, "/api/push", handlers::refuse_ollama_change},
    HttpRoute{post, "/sdapi/v1/txt2img", handlers::sd_txt2img},
    HttpRoute{post, "/sdapi/v1/img2img", handlers::sd_img2img},
    HttpRoute{get, "/sdapi/v1/options", handlers::get_sd_options},
    HttpRoute{post, "/sdapi/v1/options", handlers::set_sd_options},
    HttpRoute{get, "/sdapi/v1/sd-models", handlers::list_sd_models},
    HttpRoute{get, "/sdapi/v1/samplers", handlers::list_sd_samplers},
    HttpRoute{get, "/sdapi/v1/schedulers", handlers::list_sd_schedulers},
    HttpRoute{get, "/sdapi/v1/progress", handlers::get_sd_progress},
    HttpRoute{post, "/sdapi/v1/interrupt", handlers::interrupt_sd},
    HttpRoute{post, "/tokenize", handlers::tokenize},
    HttpRoute{post, "/detokenize", handlers::detokenize},
    HttpRoute{post, "/apply-template", handlers::apply_template},
    HttpRoute{post, "/infill", handlers::create_infill},
    HttpRoute{post, "/completion", handlers::complete_text},
    HttpRoute{get, "/props", handlers::get_props},
    HttpRoute{get, "/models", handlers::list_models},
    HttpRoute{post, "/models/load", handlers::load_model, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{post, "/models/unload", handlers::unload_model, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{post, "/api/pull", handlers::ollama_pull, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{delete_, "/api/delete", handlers::ollama_delete, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{post, "/api/copy", handlers::ollama_copy, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{get, "/health", handlers::get_health},
    HttpRoute{get, "/ready", handlers::get_readiness},
    HttpRoute{get, "/metrics", handlers::get_metrics},
    HttpRoute{get, "/v1/events", handlers::watch_daemon},
    HttpRoute{get, "/v1/trace", handlers::get_trace, /*takes_images=*/false, /*takes_file=*/false, /*is_administrative=*/true},
    HttpRoute{get, "/v1/keys", handlers::list_keys, /*takes_images=*/false, /*takes_file=*/false, /*is_administrative=*/true},
    HttpRoute{post, "/v1/keys", handlers::create_key, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{delete_, "/v1/keys/{name}", handlers::delete_key, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
    HttpRoute{get, "/v1/config", handlers::get_config, /*takes_images=*/false, /*takes_file=*/false,
              /*is_administrative=*/true},
};

// Removes and returns the first component of a path.
std::string_view take_part(std::string_view& path) {
  path.remove_prefix(1);
  const std::string_view part = path.substr(0, path.find('/'));
  path.remove_prefix(part.size());
  return part;
}

// The values of the braces; nullopt if the path does not match.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> ids;
  while (!pattern.empty() && !path.empty()) {
    const std::string_view wanted = take_part(pattern);
    if (wanted.ends_with("+}")) {
      // Everything but the rest of the pattern, which has no braces.
      if (path.size() < pattern.size() + 2 || !path.ends_with(pattern)) return std::nullopt;
      ids.emplace_back(path.substr(1, path.size() - pattern.size() - 1));
      return ids;
    }
    const std::string_view part = take_part(path);
    if (wanted.starts_with('{') && !part.empty()) {
      ids.emplace_back(part);
    } else if (wanted != part) {
      return std::nullopt;
    }
  }
  if (!pattern.empty() || !path.empty()) return std::nullopt;
  return ids;
}

// The path without doubled slashes and a slash at the end.
std::string without_extra_slashes(std::string_view path) {
  std::string plain;
  for (const char c : path) {
    if (c != '/' || !plain.ends_with('/')) plain += c;
  }
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  return plain;
}

// First components that clients put before a path because their base URL has them.
constexpr std::array<std::string_view, 3> kBases = {"v1", "api", "openai"};
constexpr int kBasesMax = 3;
constexpr std::size_t kShownBytesMax = 64;

}  // namespace

RouteMatch find_route(std::string_view path, boost::beast::http::verb method) {
  RouteMatch found;
  if (!path.starts_with('/')) return found;
  for (const HttpRoute& route : kRoutes) {
    auto ids = match(route.path, path);
    if (!ids) continue;
    const bool is_meant = route.method == method || (method == head && route.method == get);
    if (is_meant) return {.route = &route, .ids = std::move(*ids), .allowed = ""};
    const std::string_view method_name = to_string(route.method);
    if (found.allowed.contains(method_name)) continue;
    if (!found.allowed.empty()) found.allowed += ", ";
    found.allowed += method_name;
  }
  return found;
}

std::string meant_path(std::string_view path, boost::beast::http::verb method) {
  if (!path.starts_with('/')) return std::string(path);
  const std::string plain = without_extra_slashes(path);
  std::string served_otherwise;  // A path that takes other methods only.
  std::string_view rest = plain;
  for (int bases = 0; bases <= kBasesMax && !rest.empty(); ++bases) {
    for (std::string meant : {std::string(rest), "/v1" + std::string(rest)}) {
      const RouteMatch match = find_route(meant, method);
      if (match.route != nullptr) return meant;
      if (served_otherwise.empty() && !match.allowed.empty()) served_otherwise = std::move(meant);
    }
    std::string_view behind = rest;
    if (!std::ranges::contains(kBases, take_part(behind))) break;
    rest = behind;
  }
  return served_otherwise.empty() ? plain : served_otherwise;
}

std::string no_such_path(std::string_view path) {
  const std::string shown = loggable(path.substr(0, kShownBytesMax));
  const std::string wanted = lower_ascii(path.substr(0, kShownBytesMax));
  std::string_view nearest;
  std::size_t least = std::max<std::size_t>(2, wanted.size() / 4) + 1;
  for (const HttpRoute& route : kRoutes) {
    for (const std::string& whole : {wanted, "/v1" + wanted}) {
      const bool is_beginning = wanted.size() > 3 && route.path.starts_with(whole + "/");
      const std::size_t apart = is_beginning ? 1 : edit_distance(whole, route.path, least - 1);
      if (apart >= least) continue;
      least = apart;
      nearest = route.path;
    }
  }
  if (!nearest.empty()) return std::format("no such path {}: did you mean {}?", shown, nearest);
  return std::format(
      "no such path {}: this server has /v1/chat/completions, /v1/responses, /v1/messages, /api/chat and others "
      "(docs/protocol/http.md)",
      shown);
}

}  // namespace uma::server
