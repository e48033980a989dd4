"""SGLang, versions 0.4 to 0.5. Paths in comments of this package are relative to `sglang/srt` of version 0.5.23."""
