// Separates the images of a request that are given by URL, and inserts the fetched files. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "core/image.h"
#include "core/image_fetcher.h"

namespace uma::image {

// The URLs to fetch, in order.
[[nodiscard]] std::vector<std::string> urls_of(const std::vector<InputImage>& images);
[[nodiscard]] std::vector<std::string> urls_of(const std::vector<ImageSource>& images);
// Replaces the URLs by the fetched files. Errors: the error of the fetch, with the field of its image.
[[nodiscard]] Expected<Unit> put_fetched(std::vector<InputImage>& images, Fetched fetched);
[[nodiscard]] Expected<Unit> put_fetched(std::vector<ImageSource>& images, Fetched fetched);

}  // namespace uma::image
