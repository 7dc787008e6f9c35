// A trial of a model's file. The library ends the process over some files, and takes minutes for texts with some tokenizers; so
// a file that was never loaded goes through here first, in a process that nobody needs (docs/decisions/0042).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/error.h"
#include "llm/model.h"

namespace uma::llm {

// Names all that decides the outcome of a trial: the metadata and tensor lists of the model's files, their sizes, and the
// versions of library and trial. Reads as much as the metadata has, 256 MiB a file at most. Errors: as read_model_header().
[[nodiscard]] Expected<std::string> trial_identity(const std::string& path);

// What try_model() takes. A tokenizer takes milliseconds for a sample; one whose time grows with the square of a text's length
// seconds.
struct TrialLimits {
  std::size_t sample_bytes = 16u << 10;  // of each kind of text
  double sample_s_max = 2;               // of CPU time
};

// Loads the file as a daemon does, except that weights are mapped and not read, without devices; makes a small context; reads
// the vocabulary; tokenizes samples of digits, letters, marks, blanks and characters of several bytes. May end the process, or
// its patience: for a child process with limits. Returns the model, which such a process need not free. Errors: E_MODEL_003 for
// a tokenizer that is too slow; what the library says of a file that it refuses in order, as load_llama_model().
[[nodiscard]] Expected<std::shared_ptr<const Model>> try_model(const std::string& path, const TrialLimits& limits = {});

}  // namespace uma::llm
