variable "bucket" {
  description = "Name of the bucket."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket must be the name of an S3 bucket: 3 to 63 lower-case letters, digits, dots or hyphens."
  }
}

variable "tags" {
  description = "Tags of the bucket."
  type        = map(string)
  default     = {}
}

variable "kms_key_arn" {
  description = "Key for SSE-KMS; null: SSE-S3. With a key, machines outside AWS need leave to use it."
  type        = string
  default     = null
}

variable "noncurrent_days" {
  description = "Days that overwritten and deleted objects are kept. Heartbeats are overwritten every few seconds."
  type        = number
  default     = 3

  validation {
    condition     = var.noncurrent_days >= 1 && floor(var.noncurrent_days) == var.noncurrent_days
    error_message = "noncurrent_days must be a whole number of at least 1."
  }
}

variable "force_destroy" {
  description = "True lets `terraform destroy` delete a bucket that still holds checkpoints."
  type        = bool
  default     = false
}
