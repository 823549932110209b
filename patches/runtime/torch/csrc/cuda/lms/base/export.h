#pragma once

// What libtorch_lms.so exports: exports.map keeps everything else in.
#define LMS_API extern "C" __attribute__((visibility("default")))
