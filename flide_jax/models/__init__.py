"""Decision models as free functions over parameter pytrees: `params`, `layers`, the mixers, `readout`, `loading`."""
