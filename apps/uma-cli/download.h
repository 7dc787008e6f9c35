// Fetches one file into its part, over as many connections as it takes, and checks it.
#pragma once

#include <string>

#include "uma-cli/http.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/part_file.h"
#include "uma-cli/progress.h"
#include "uma-cli/result.h"
#include "uma-cli/resume.h"

namespace uma::cli {

// Ensures: `part` holds the whole file, it is GGUF, and its sum is the one that `wanted` knows; returns the sum. A failure
// leaves the part for the next run, unless its bytes are wrong: then it is gone.
[[nodiscard]] Result<std::string> download(const Wanted& wanted, PartFile& part, Http& http, Progress& progress,
                                           Interrupts& interrupts);

// A small text, asked for again where the connection breaks. `wanted` says what it is for when the server refuses it.
struct Page {
  std::string text;
  HttpHead head;
};
[[nodiscard]] Result<Page> fetch_page(const Url& url, const Wanted& wanted, Http& http, Interrupts& interrupts);

}  // namespace uma::cli
