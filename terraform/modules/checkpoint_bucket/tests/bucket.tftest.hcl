mock_provider "aws" {
  mock_resource "aws_s3_bucket" {
    defaults = { id = "my-checkpoints", arn = "arn:aws:s3:::my-checkpoints" }
  }
}

variables {
  bucket = "my-checkpoints"
}

run "as_designed" {
  command = apply

  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.checkpoints.block_public_acls,
      aws_s3_bucket_public_access_block.checkpoints.block_public_policy,
      aws_s3_bucket_public_access_block.checkpoints.ignore_public_acls,
      aws_s3_bucket_public_access_block.checkpoints.restrict_public_buckets,
    ])
    error_message = "The bucket must be private."
  }

  assert {
    condition = (
      one(one(aws_s3_bucket_server_side_encryption_configuration.checkpoints.rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    )
    error_message = "The bucket must be encrypted."
  }

  assert {
    condition = (
      jsondecode(aws_s3_bucket_policy.checkpoints.policy).Statement[0].Condition.Bool["aws:SecureTransport"] == "false" &&
      jsondecode(aws_s3_bucket_policy.checkpoints.policy).Statement[0].Effect == "Deny"
    )
    error_message = "The bucket must be reached by TLS only."
  }

  assert {
    condition     = aws_s3_bucket_versioning.checkpoints.versioning_configuration[0].status == "Enabled"
    error_message = "The bucket must be versioned."
  }

  assert {
    condition     = !aws_s3_bucket.checkpoints.force_destroy
    error_message = "Checkpoints must not go by a slip."
  }
}

run "kms" {
  command = plan

  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/x"
  }

  assert {
    condition = (
      one(one(aws_s3_bucket_server_side_encryption_configuration.checkpoints.rule).apply_server_side_encryption_by_default).sse_algorithm == "aws:kms"
    )
    error_message = "A key means SSE-KMS."
  }
}

run "not_a_bucket" {
  command = plan

  variables {
    bucket = "My_Bucket"
  }

  expect_failures = [var.bucket]
}
