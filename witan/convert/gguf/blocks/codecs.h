// The codecs of the types, each in a file of its own.
#pragma once

#include "witan/convert/gguf/blocks/block_codec.h"

namespace witan {

extern const BlockCodec kQ5_0Codec, kQ8_0Codec, kQ4KCodec, kQ5KCodec, kQ6KCodec, kMxfp4Codec;

}  // namespace witan
