// What every file of the shim needs: a failure becomes text, and lists of tensors become vectors.

#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace dressage {

inline char *first_line(const char *text) {
  const size_t length = std::strcspn(text, "\n");
  char *copy = static_cast<char *>(std::malloc(length + 1));
  if (copy == nullptr) std::abort();
  std::memcpy(copy, text, length);
  copy[length] = '\0';
  return copy;
}

// Runs `body` and gives its failure as text.
template <typename Body> char *caught(Body body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error &error) {
    return first_line(error.what_without_backtrace());
  } catch (const std::exception &error) {
    return first_line(error.what());
  } catch (...) {
    return first_line("an exception of an unknown kind");
  }
}

} // namespace dressage
