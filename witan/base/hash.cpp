#include "witan/base/hash.h"

#include <xxhash.h>

#include <cstdio>
#include <new>

namespace witan {

struct Hasher::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  if (!state_->xxh3) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh3);
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;

void Hasher::update(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(state_->xxh3, data, bytes);
}

std::string Hasher::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_->xxh3);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return text;
}

uint64_t Hasher::low64() const {
  return XXH3_128bits_digest(state_->xxh3).low64;
}

std::string hash_hex(const void* data, size_t bytes) {
  Hasher hasher;
  hasher.update(data, bytes);
  return hasher.hex();
}

uint64_t hash64(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

}  // namespace witan
