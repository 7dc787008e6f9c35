// The files of the page at /, as page/build.mjs writes them: read once, served from memory.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::server {

struct PageFile {
  std::string bytes;
  std::string gzip;  // The bytes, compressed; empty: the folder has no FILE.gz.
  std::string_view content_type;
  std::string etag;           // With its quotation marks.
  bool is_permanent = false;  // Its name changes with its content.
};

class PageFiles {
 public:
  // Reads a folder and its folder "chunks". Without the folder there is no page. Errors: E_IO_001 for a file that cannot be
  // read, or more than a page has.
  [[nodiscard]] static Expected<PageFiles> read(const std::filesystem::path& folder);

  // The file at the path of a request, "/" or "/page.js"; null: there is none.
  [[nodiscard]] const PageFile* find(std::string_view path) const;
  [[nodiscard]] bool empty() const { return files_.empty(); }

 private:
  std::map<std::string, PageFile, std::less<>> files_;  // By path.
};

}  // namespace uma::server
