// Downloads one file into its part file, over one connection after another, and verifies it.
#pragma once

#include <string>

#include "uma-cli/interrupts.h"
#include "uma-cli/models/http.h"
#include "uma-cli/models/part_file.h"
#include "uma-cli/progress.h"
#include "uma-cli/result.h"
#include "uma-cli/resume.h"

namespace uma::cli {

// Ensures: `part` holds the whole file, which is a model and has the checksum of `wanted` if that is known. Returns the
// checksum. A failure keeps the part for the next run, unless its bytes are wrong; then the part is removed.
[[nodiscard]] Result<std::string> download(const Wanted& wanted, PartFile& part, Http& http, Progress& progress,
                                           Interrupts& interrupts);

// A small text file. The request is repeated if the connection breaks. `wanted` names the purpose in messages.
struct Page {
  std::string text;
  HttpHead head;
};
[[nodiscard]] Result<Page> fetch_page(const Url& url, const Wanted& wanted, Http& http, Interrupts& interrupts);

}  // namespace uma::cli
