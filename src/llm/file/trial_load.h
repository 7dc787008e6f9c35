// Tests a model file in a child process. On some files the library ends the process, and with some tokenizers it takes minutes
// for a text; so a new file is first loaded by a process that may fail (docs/decisions/0042).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "core/error.h"
#include "llm/model.h"

namespace uma::llm {

// Identifies the outcome of a trial: the metadata and tensor lists of the model's files, their sizes, and the versions of
// library and trial. Reads the metadata, at most 256 MiB per file. Errors: as read_model_header().
[[nodiscard]] Expected<std::string> trial_identity(const std::string& path);
// Identifies the outcome of a trial of an adapter, or of a projector, with the model.
[[nodiscard]] Expected<std::string> adapter_trial_identity(const std::string& path, const std::string& adapter_path);
[[nodiscard]] Expected<std::string> projector_trial_identity(const std::string& path, const std::string& projector_path);

// Limits of try_model(). A good tokenizer takes milliseconds for a sample; a tokenizer with quadratic time takes seconds.
struct TrialLimits {
  std::size_t sample_bytes = 16u << 10;  // Size of each sample.
  double sample_s_max = 2;               // CPU time of each sample.
};

// Loads the file as a daemon does, but without devices and with mapped weights that are not read; makes a small context; reads
// the vocabulary; tokenizes samples of digits, letters, marks, blanks and characters of several bytes. It may end the process
// or run for ever, so call it in a child process with limits. The child need not free the returned model. Errors: E_MODEL_003
// for a tokenizer that is too slow; those of load_llama_model() for a file that the library refuses. `on_loadable` is called
// when only the samples are left.
[[nodiscard]] Expected<std::shared_ptr<const Model>> try_model(const std::string& path, const TrialLimits& limits = {},
                                                               const std::function<void()>& on_loadable = {});

// Loads the model likewise, and the adapter with all its numbers, and begins a computation with them, which plans every product
// and ends before the second. Like try_model(), it may end the process.
[[nodiscard]] Expected<Unit> try_adapter(const std::string& path, const std::string& adapter_path);

struct ProjectorTrialLimits {
  double encoding_s_max = 4;  // CPU time after which an encoding is ended; a large encoder takes longer for any picture.
};

// Loads the model likewise, and the projector with its weights, and encodes a small picture and a short clip, as far as it
// reads them, up to the limit. Like try_model(), it may end the process. Errors: E_MODEL_003 for a projector that loads but
// cannot encode; E_MODEL_002 for one that the library refuses.
[[nodiscard]] Expected<Unit> try_projector(const std::string& path, const std::string& projector_path,
                                           const ProjectorTrialLimits& limits = {});

}  // namespace uma::llm
