#include "uma-cli/chat/generation_flags.h"

#include <boost/json/array.hpp>

namespace uma::cli {

void GenerationFlags::add_to(boost::json::object& request) const {
  const auto add = [&request](const char* name, const auto& value) {
    if (value) request[name] = *value;
  };
  add("max_tokens", max_tokens);
  add("temperature", temperature);
  add("top_p", top_p);
  add("top_k", top_k);
  add("min_p", min_p);
  add("seed", seed);
  if (!stop.empty()) request["stop"] = boost::json::array(stop.begin(), stop.end());
  if (no_stream) request["stream"] = false;
}

}  // namespace uma::cli
