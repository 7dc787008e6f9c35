// UMA_HAS_SANITIZER is 1 in a program with AddressSanitizer or ThreadSanitizer, which have allocators and shadow memory of
// their own, else 0.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UMA_HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UMA_HAS_SANITIZER 1
#endif
#endif
#ifndef UMA_HAS_SANITIZER
#define UMA_HAS_SANITIZER 0
#endif
