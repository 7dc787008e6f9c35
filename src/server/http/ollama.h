// What the handlers of Ollama's API have in common.
#pragma once

#include <string>

#include "core/capability.h"

namespace uma::server {

class HttpConnection;

// Like HttpConnection::choose_model(), for names with tags: "uma-tiny:latest" is the model "uma-tiny".
[[nodiscard]] std::string choose_ollama_model(HttpConnection& connection, const std::string& asked, Capability capability);

}  // namespace uma::server
