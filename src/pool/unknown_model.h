// Requests that name a model that is not registered (docs/decisions/0050).
#pragma once

#include <cstdint>
#include <string_view>

namespace uma::pool {

// Which model answers such a request. `automatic`: the default model if the name is one of another vendor's models, or if there
// is only one model that the request can mean.
enum class UnknownModel : std::uint8_t { automatic, use_default, refuse };

// How a requested name agrees with the name of a model, file or repository in another spelling; later ones agree better.
enum class Likeness : std::uint8_t {
  none,
  beginning,  // It has the first words of the name, and behind a colon others in their order: "llama3.2:3b".
  whole,      // It has the same words: "llama3.2:3b-instruct-q4_K_M" and "Llama-3.2-3B-Instruct-Q4_K_M".
};

// Compares a name as Ollama and Hugging Face write them (NAME:TAG, library/NAME, hf.co/OWNER/REPO:QUANT) with a known one.
// Pure; on uma-http for each request whose name is not known.
[[nodiscard]] Likeness likeness(std::string_view asked, std::string_view known);

// Whether a program means a hosted model by this name, as "claude-sonnet-4-5", "openai/gpt-5" or "o3". Programs ask for such
// models in side requests, whatever model their user has chosen.
[[nodiscard]] bool is_name_of_other_vendor(std::string_view name);

}  // namespace uma::pool
