#pragma once

// Marks a function that libtorch_lms.so exports. exports.map hides all other symbols.
#define LMS_API extern "C" __attribute__((visibility("default")))
