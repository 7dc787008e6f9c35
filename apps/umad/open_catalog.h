// The store of sessions that the configuration names, and the files of their images.
#pragma once

#include <memory>

#include "core/error.h"
#include "image/kept_images.h"
#include "kv/catalog/catalog.h"
#include "umad/config.h"
#include "umad/model_choice.h"

namespace uma::umad {

struct OpenedCatalog {
  std::unique_ptr<kv::Catalog> catalog;
  std::shared_ptr<image::KeptImages> images;  // Shared by the engine and the catalog, which stores them for other daemons.
};

// A file in the data folder, or the database that several daemons share. Errors: E_IO_001.
[[nodiscard]] Expected<OpenedCatalog> open_catalog(const Config& config, const Models& models);

}  // namespace uma::umad
