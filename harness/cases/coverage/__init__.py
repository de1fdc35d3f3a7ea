"""Coverage of the input space: which features a case has, as cells of a grid."""
