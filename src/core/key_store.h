// The API keys that several daemons share, as a text in the format of a keys file (server/http/api_keys.h): it has hashes, and
// no keys. Used by one thread at a time.
#pragma once

#include <optional>
#include <string>

#include "core/error.h"
#include "core/file/edit_file.h"

namespace uma {

class KeyStore {
 public:
  virtual ~KeyStore() = default;

  // The present text; nullopt: it is the one that the last call returned. Blocks for seconds if the store does not answer.
  // Errors: E_IO_001.
  [[nodiscard]] virtual Expected<std::optional<std::string>> read_changes() = 0;

  // Replaces the text by what `edit` makes of it. Edits follow one another, whichever daemon makes them. Blocks as above.
  // Errors: E_IO_001 and those of `edit`, and nothing has changed; E_IO_002 if it is unknown whether the change is stored.
  [[nodiscard]] virtual Expected<Unit> edit(const TextEdit& edit) = 0;

  // Any thread: a call in progress soon fails, and so do later ones.
  virtual void cancel() {}
};

}  // namespace uma
